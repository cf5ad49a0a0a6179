"""Causes of a hang."""
