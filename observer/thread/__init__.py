"""Measure one training thread: steps, timeline, functions, patterns."""
