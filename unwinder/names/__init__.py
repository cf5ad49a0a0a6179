"""Names for what the walk found: code objects, lines, native functions."""
