"""Servers that the ranks of a run ask: which they are, and what each request took."""
