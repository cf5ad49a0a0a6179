"""scripts/start.py campaignkit fuzz|chaos|soak: what scripts/fuzz, scripts/chaos and scripts/soak run."""

import sys

from campaignkit.cli import main

sys.exit(main())
