"""Timings from another source (`--steps FILE`): read, checked, and converted into a fleet."""
