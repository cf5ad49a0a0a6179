"""Coverage-guided fuzzing of the parsers of untrusted bytes: `scripts/fuzz`."""
