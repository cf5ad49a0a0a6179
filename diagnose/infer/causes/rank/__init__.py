"""Causes that make one rank's own work longer than its peers'."""
