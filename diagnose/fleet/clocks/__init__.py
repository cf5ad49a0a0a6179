"""Which moments of two hosts are the same."""
