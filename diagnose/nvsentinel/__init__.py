"""Health events for NVSentinel: see README.md here."""
