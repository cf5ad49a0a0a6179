"""Programs that another user runs beside a soak."""
