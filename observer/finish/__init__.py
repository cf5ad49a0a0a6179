"""End a window: take the last readings, then build the rows of every table."""
