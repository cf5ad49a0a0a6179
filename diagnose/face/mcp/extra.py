"""Whether the official SDK of the Model Context Protocol is installed: an extra, rankscope[mcp]."""

from __future__ import annotations

from rankscope.diagnose import extras
from rankscope.probes.base.errors import MissingFeature

_NEEDS = ("mcp", "mcp_types", "jsonschema", "anyio")  # mcp_types: since version 2


class NoMcp(MissingFeature):
    """The SDK is not installed."""

    help = "Install it where rankscope is: pip install 'rankscope[mcp]'."


def check() -> None:
    """Raise NoMcp if the extra is not installed."""
    extras.require(_NEEDS, NoMcp("serving agents needs the SDK of the Model Context Protocol, mcp 2 or later"))
