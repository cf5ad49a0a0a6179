"""Windows back to back for hours beside a job with churn: `scripts/soak`."""
