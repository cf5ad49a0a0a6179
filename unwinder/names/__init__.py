"""Names and lines for frames: code objects and native functions."""
