"""What Python stacks cost, and whether they are right."""
