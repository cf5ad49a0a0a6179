"""Export a window to formats of other tools."""
