"""Benches of Rankscope: each prints the table that the README quotes."""
