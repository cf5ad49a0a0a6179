"""scripts/start.py fuzzkit: what scripts/fuzz runs."""

import sys

from fuzzkit.cli import main

sys.exit(main())
