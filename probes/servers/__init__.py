"""Storage servers: see README.md here."""
