"""The product suite: what `pytest difftest` runs against kernels."""
