"""All hosts of a job look at once, without talking to each other: triggers beside the windows, and one of them judges."""
