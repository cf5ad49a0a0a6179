"""Sections of the page of a report, one file each."""
