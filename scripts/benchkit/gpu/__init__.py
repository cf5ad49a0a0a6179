"""Benches for a host with a GPU."""
