"""One runner for three campaigns: fuzzing of parsers, faults of the host, hours beside a job."""
