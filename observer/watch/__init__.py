"""Tier 0: always on. Steps, waiting and life of each rank, from one probed function."""
