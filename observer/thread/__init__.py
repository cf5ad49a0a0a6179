"""One training thread: steps, timeline, functions, patterns."""
