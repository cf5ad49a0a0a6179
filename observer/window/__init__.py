"""The window: schema and folder."""
