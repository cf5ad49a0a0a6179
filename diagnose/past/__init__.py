"""Earlier windows of the same job."""
