"""GPU activity, laid over the host's timeline."""
