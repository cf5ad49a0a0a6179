"""Programs that are observed, or preloaded; nothing here is imported."""
