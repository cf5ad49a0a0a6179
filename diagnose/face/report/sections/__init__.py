"""Sections of the page, one file each."""
