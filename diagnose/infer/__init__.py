"""From windows to one verdict: fleet, model, causes, selection."""
