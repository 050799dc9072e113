"""What a finding is due to: a rounding that the candidate does not declare, a known mistake, or where it is wrong."""
