"""What a page shows, one file for each section."""
