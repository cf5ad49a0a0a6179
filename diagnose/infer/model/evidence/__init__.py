"""Evidence for or against a cause besides the time that was lost."""
