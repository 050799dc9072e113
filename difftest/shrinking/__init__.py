"""A finding made small: what is simpler, which steps lead there, who takes them."""
