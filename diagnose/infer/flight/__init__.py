"""Evaluate dumps of PyTorch's flight recorder in a hang."""
