"""Library calls, timed or counted by uprobes."""
