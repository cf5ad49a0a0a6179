"""What several checks read: once per sweep."""
