"""Location of each rank of a job that makes no progress."""
