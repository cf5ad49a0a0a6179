"""Hypotheses about the cause of a slow or hanging job: one file per mechanism."""
