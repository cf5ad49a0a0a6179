"""The JSON that commands print with --json, as objects, for other interfaces too. See README.md."""
