"""Build one fleet from windows or timings."""
