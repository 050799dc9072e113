"""The gate: what a release has to pass on a card, and the verdict that it did."""
