"""The end of a window: the last readings, then rows for every table."""
