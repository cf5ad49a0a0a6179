"""From fleets to one verdict."""
