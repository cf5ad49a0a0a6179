"""An emulated GPU machine at the vendor's own interface."""
