"""Looks of all hosts of a job over one interval, agreed on by messages in their shared store; one host judges."""
