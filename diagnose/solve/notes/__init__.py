"""What a verdict tells beside its suspects."""
