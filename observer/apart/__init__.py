"""The process that observes, apart from the one that has the rights."""
