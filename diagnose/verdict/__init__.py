"""The verdict: rankscope.verdict/1."""
