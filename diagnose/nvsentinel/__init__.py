"""Health events for NVSentinel, from sweeps and from the service: see README.md here."""
