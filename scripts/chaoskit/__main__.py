"""scripts/start.py chaoskit: what scripts/chaos runs."""

import os
import sys

from chaoskit.cli import main

os.environ.pop("PYTHONPATH", None)  # how this module was found; jobs and rankscope are to start without it
sys.exit(main())
