"""python -m fuzzkit: what scripts/fuzz runs."""

import sys

from fuzzkit.cli import main

sys.exit(main())
