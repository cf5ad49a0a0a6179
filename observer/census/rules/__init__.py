"""The rules of the census, applied in the order of ranks.py."""
