"""What may be the reason: one file per mechanism."""
