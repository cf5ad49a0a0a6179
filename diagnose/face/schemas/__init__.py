"""JSON Schemas of what commands print with --json; the package holds data files alone."""
