"""Which processes are ranks, and whose."""
