"""Whether the official SDK of the Model Context Protocol is installed: an extra, rankscope[mcp]."""

from __future__ import annotations

import importlib.util

from rankscope.probes.base.errors import MissingFeature

_NEEDS = ("mcp", "mcp_types", "jsonschema", "anyio")  # mcp_types: since version 2


class NoMcp(MissingFeature):
    """The SDK is not installed."""

    help = "Install it where rankscope is: pip install 'rankscope[mcp]'."


def check() -> None:
    """Raise NoMcp if the extra is not installed."""
    for name in _NEEDS:
        try:
            found = importlib.util.find_spec(name)
        except (ModuleNotFoundError, ValueError):  # ValueError: a module that a test took out
            found = None
        if found is None:
            raise NoMcp("serving agents needs the SDK of the Model Context Protocol, mcp 2 or later")
