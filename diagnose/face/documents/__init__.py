"""What commands print with --json, as objects: for whatever else gives them to programs. See README.md."""
