"""scripts/start.py kernelkit: what scripts/kernels runs."""

import os
import sys

from kernelkit.cli import main

os.environ.pop("PYTHONPATH", None)  # how this module was found; rankscope is to start without it
sys.exit(main())
