"""Observe while a window runs."""
