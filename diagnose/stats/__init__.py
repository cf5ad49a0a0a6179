"""Robust statistics, change and rhythm. No domain words."""
