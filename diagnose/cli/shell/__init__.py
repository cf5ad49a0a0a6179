"""What a shell and its user get: completion, manual pages."""
