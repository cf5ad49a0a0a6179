"""From a fleet to one verdict."""
