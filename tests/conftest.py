"""Property tests draw new examples on a developer's machine, and always the same ones in CI: a finding is for who can mend it."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
