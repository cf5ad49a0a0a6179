"""Recorded windows whose truth is known, of all labs in one format: added, judged together, counted, compared."""
