"""Causes that touch all ranks of a host."""
