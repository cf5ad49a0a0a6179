"""Commands about stores, and about records over many windows. See README.md."""
