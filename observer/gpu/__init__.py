"""What GPUs did, and that laid over the host's timeline."""
