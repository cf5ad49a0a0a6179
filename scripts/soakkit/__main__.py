"""scripts/start.py soakkit: what scripts/soak runs."""

import os
import sys

from soakkit.cli import main

os.environ.pop("PYTHONPATH", None)  # how this module was found; jobs and rankscope are to start without it
sys.exit(main())
