"""Tier 0, always on: steps, waiting and ends of each rank, from one probed function."""
