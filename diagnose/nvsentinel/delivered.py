"""Deliver a sweep's health events, and remember what was delivered in the sweep's state folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rankscope.diagnose.nvsentinel.from_sweep import Delivered, after, changes
from rankscope.diagnose.nvsentinel.health_event import node_name
from rankscope.diagnose.nvsentinel.send import send
from rankscope.observer.window.staging import put_file
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import opened_folder, read_ours

FILE = "nvsentinel.json"
_BYTES_MOST = 1 << 20


def deliver(sweep: Mapping[str, Any], ran: Collection[str], state: Path, path: Path, remediate: bool) -> str:
    """Send what changed since the last delivery; return a note on what was not taken, '' if all was.

    `sweep`: its JSON; `ran`: ids of the checks that ran; `state`: the sweep's state folder; `path`: NVSentinel's
    socket; `remediate`: let NVSentinel act on them. Never raises. What was not taken is sent by the next sweep. A
    remembered state that cannot be read counts as nothing delivered, so that trouble is sent once more.
    """
    known = _read(state)
    events = changes(sweep, known, ran, node_name())
    if not events:
        return ""
    if why := send(path, events, remediate):
        return f"NVSentinel was not told of {len(events)} changes: {why}; the next sweep tries again"
    return _write(state, after(known, events))


def _read(state: Path) -> Delivered:
    """Read what was delivered, by (check, instance), from the state folder; {} if there is none or it is unreadable."""
    try:
        rows = json.loads(read_ours(state, [FILE], _BYTES_MOST))
        return {(str(check), str(instance)): str(word) for check, instance, word in rows}
    except (OSError, OutputFailed, ValueError, TypeError, RecursionError):
        return {}


def _write(state: Path, delivered: Delivered) -> str:
    """Store what was delivered in the state folder; return a note if that failed, '' if not."""
    content = json.dumps([[*key, word] for key, word in sorted(delivered.items())]).encode()
    with contextlib.suppress(OSError, OutputFailed), opened_folder(state, make=True) as place:
        put_file(place, FILE, lambda file: file.write(content))
        return ""
    return "NVSentinel was told, but not remembered: the next sweep tells it again"
