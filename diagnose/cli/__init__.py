"""The command line: one file per command, and how verdicts are printed and remembered."""
