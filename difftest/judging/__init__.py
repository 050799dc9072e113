"""One scenario asked of one oracle, and whether the answer may be right."""
