"""Benches of Rankscope: each prints the table that .github/EVIDENCE.md quotes."""
