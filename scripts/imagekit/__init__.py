"""An image from a Dockerfile on a host without a builder: its steps in a root of its own, and an OCI archive of that root."""
