"""Outputs of the service: metrics, hooks, log, reasons to drain a host, signs of life for a supervisor."""
