"""Where the time of a step goes."""
