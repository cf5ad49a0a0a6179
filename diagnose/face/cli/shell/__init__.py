"""Shell integration: completion, manual pages, help."""
