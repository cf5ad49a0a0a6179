"""Optional packages: whether they are installed, found out without loading them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from rankscope.probes.base.errors import MissingFeature


def require(modules: Iterable[str], missing: MissingFeature) -> None:
    """Raise `missing` unless all these modules can be found. Only the packages above them are imported."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ModuleNotFoundError, ValueError):  # ValueError: a module that a test took out
            found = None
        if found is None:
            raise missing
