"""Earlier windows of the same job as a baseline, and the history that stores them."""
