"""Where the ranks of a job that does not get on stand."""
