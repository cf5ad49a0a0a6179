"""Coverage-guided fuzzing of everything that reads bytes of others: `scripts/fuzz`."""
