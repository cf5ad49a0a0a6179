"""Readings shared by several checks, made once per sweep."""
