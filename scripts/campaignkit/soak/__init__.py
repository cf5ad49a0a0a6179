"""Hours beside a job: is the observer flat, and the job as fast as without it? `scripts/soak`."""
