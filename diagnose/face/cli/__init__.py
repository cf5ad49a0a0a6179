"""The command line: one file per command, and printing and storing of verdicts."""
