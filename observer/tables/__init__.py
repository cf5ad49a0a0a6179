"""Make the rows of a window from observed data."""
