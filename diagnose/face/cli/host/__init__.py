"""Commands about this host alone. See README.md."""
