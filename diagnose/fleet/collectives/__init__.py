"""Stays in single collectives, side by side for all ranks."""
