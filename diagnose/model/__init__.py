"""Own time and waiting, who is odd, what a step would be without it, which function holds it."""
