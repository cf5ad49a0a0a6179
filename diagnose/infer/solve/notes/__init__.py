"""Notes of a verdict besides its suspects."""
