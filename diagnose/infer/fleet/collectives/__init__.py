"""Stays in single collectives, aligned over all ranks."""
