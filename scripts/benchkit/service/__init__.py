"""Benches of `rankscope watch`."""
