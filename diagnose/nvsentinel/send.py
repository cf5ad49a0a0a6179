"""Call NVSentinel's platform connector on its unix socket, with a time limit.

grpcio and protobuf are loaded by the first call: whoever does not ask for it needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankscope.diagnose import extras
from rankscope.diagnose.nvsentinel.health_event import HealthEvent
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import MissingFeature, UsageError

TIMEOUT_S = 3.0
_NEEDS = ("grpc", "google.protobuf.message_factory")


class NoNvsentinel(MissingFeature):
    """grpcio or protobuf is not installed."""

    help = "Install it where rankscope is: pip install 'rankscope[nvsentinel]'."


def check() -> None:
    """Raise NoNvsentinel if grpcio or protobuf is not installed."""
    extras.require(_NEEDS, NoNvsentinel("health events for NVSentinel need grpcio and protobuf"))


def check_asked(path: Path | None, remediate: bool) -> None:
    """Check the options --nvsentinel (`path`) and --nvsentinel-remediate. Raises NoNvsentinel, UsageError."""
    if path is not None:
        check()
    elif remediate:
        raise UsageError("--nvsentinel-remediate needs --nvsentinel SOCKET")


def send(path: Path, events: Sequence[HealthEvent], remediate: bool = False, timeout_s: float = TIMEOUT_S) -> str:
    """Send events in one call; return why they were not taken, '' if they were. Never raises.

    Takes `timeout_s` at most, whatever the other end does.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failures are reported by the caller, once
    try:
        import grpc

        from rankscope.diagnose.nvsentinel import wire

        content = wire.encode(events, remediate)
        with grpc.insecure_channel(f"unix:{path.absolute()}") as channel:
            call = channel.unary_unary(wire.METHOD)
            call(content, timeout=timeout_s, wait_for_ready=False)
    except Exception as error:
        return _why(error, path, timeout_s)
    return ""


def _why(error: Exception, path: Path, timeout_s: float) -> str:
    """Describe a failure in a few words: grpcio's own text has several lines."""
    code = getattr(error, "code", None)
    name = str(getattr(code(), "name", "")) if callable(code) else ""
    if name == "UNAVAILABLE":
        return f"{path}: {'nobody answers' if path.exists() else 'there is no such socket'}"
    if name == "DEADLINE_EXCEEDED":
        return f"{path}: no answer within {timeout_s:g} s"
    return clean(f"{path}: {name or f'{type(error).__name__}: {error}'}", 200)
