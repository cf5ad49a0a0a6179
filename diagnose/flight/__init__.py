"""What PyTorch's flight recorder says of a hang."""
