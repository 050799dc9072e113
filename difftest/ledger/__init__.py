"""What is known: case files, what they explain of new findings, and how they are run again."""
