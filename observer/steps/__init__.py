"""Steps of a rank: iterations of the job's own training loop, told from calls."""
