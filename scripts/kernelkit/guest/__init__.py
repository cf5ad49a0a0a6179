"""What runs inside the emulated machine, as root of it, on this clone and its .venv."""
