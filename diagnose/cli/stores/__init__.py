"""Commands about what lies in stores, and about what is known over many windows. See README.md."""
