"""JSON Schemas of what commands print with --json: data alone, no command imports them."""
