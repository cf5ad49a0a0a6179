"""What the service tells others: metrics, hooks, why to drain a host, that it lives."""
