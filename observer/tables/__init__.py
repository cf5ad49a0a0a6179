"""Rows of a window, from what was gathered."""
