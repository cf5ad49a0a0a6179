"""Property tests draw new examples on a developer's machine, and always the same ones in CI: a finding is for who can mend it.

A shell ignores SIGINT for what it runs in the background, and children inherit that: those that are to be interrupted could not be.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

pytest_plugins = ("testkit.reports",)

signal.signal(signal.SIGINT, signal.default_int_handler)
