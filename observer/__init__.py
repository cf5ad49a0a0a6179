"""Which processes are ranks, and what one window of them looks like."""
