"""What a job spends its time on that it need not, whether or not a rank differs."""
