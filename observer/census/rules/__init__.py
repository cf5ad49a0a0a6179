"""The rules by which the census decides, in the order that ranks.py gives."""
