"""Programs that run without root, wherever the clone lies: other users may not be able to enter its folder, and so not its `.venv`."""

from __future__ import annotations

import os
import sys

# The interpreter itself, with nothing of a clone: no packages, no settings of the environment.
PYTHON = (os.path.realpath(sys.executable), "-I", "-S")
