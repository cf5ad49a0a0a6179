"""What makes one rank slow: one file per component."""
