"""A job of reinforcement learning: trainer ranks, and servers that generate for them."""
