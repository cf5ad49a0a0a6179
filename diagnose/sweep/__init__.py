"""Health checks of one host: see README.md here."""
