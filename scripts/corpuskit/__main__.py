"""scripts/start.py corpuskit: what scripts/corpus runs."""

import sys

from corpuskit.cli import main

# Guarded: the processes that judge import this module again.
if __name__ == "__main__":
    sys.exit(main())
