"""scripts/start.py labkit: what scripts/lab runs."""

import os
import sys

from labkit.cli import main

os.environ.pop("PYTHONPATH", None)  # how this module was found; jobs and rankscope are to start without it
sys.exit(main())
