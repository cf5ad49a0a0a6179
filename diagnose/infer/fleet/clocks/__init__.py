"""Clock offsets between hosts."""
