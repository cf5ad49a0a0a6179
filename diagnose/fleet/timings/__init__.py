"""Timings that somebody else measured (`--steps FILE`), read, checked, and made a fleet."""
