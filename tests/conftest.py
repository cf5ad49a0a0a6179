"""Property tests draw new examples on a developer's machine, and always the same ones in CI: a finding is for who can mend it.

A shell ignores SIGINT for what it runs in the background, and children inherit that: those that are to be interrupted could not be.

Real kernels, jobs and faults meet a machine that others use too. A test of them that failed is run once more, in a fresh job, and
told as a rerun with what it said; scripts/test allows few of those in all, so that what is broken cannot hide in them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

TESTS = Path(__file__).parent
REAL = ("kernel", "lab", "gpu")  # folders of tests that need the machine itself


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in REAL:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


pytest_plugins = ("testkit.reports",)

signal.signal(signal.SIGINT, signal.default_int_handler)
