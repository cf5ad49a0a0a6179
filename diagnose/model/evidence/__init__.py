"""What speaks for or against a cause beside the time that was lost."""
