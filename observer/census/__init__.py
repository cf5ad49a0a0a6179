"""Find the processes that are ranks, and their jobs and owners."""
