"""The process that answers an agent's questions: one at a time, in its main thread, without the SDK.

It is a process of its own, so that the server hears its client meanwhile, gives up what takes too long, and has no threads where a
question forks (the census and the recorder do, and give up their rights in a child). Its output goes to stderr: stdout is the client's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from rankscope.diagnose.face.mcp.bounded import Kept
from rankscope.diagnose.face.mcp.envelope import Answer, packed, packed_rest
from rankscope.diagnose.face.mcp.places import Places
from rankscope.diagnose.no_pandas import spare_pandas
from rankscope.diagnose.service.signals import end_with
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import RankscopeError

Call = Callable[[Places, Mapping[str, Any]], Answer]


def calls() -> dict[str, Call]:
    """Return the function of each tool but `more`, by name. Imported on the first question: a server is up at once."""
    from rankscope.diagnose.face.mcp import of_host, of_service, of_windows

    return {
        "doctor": of_host.doctor, "ranks": of_host.ranks, "diagnose_now": of_host.diagnose_now, "causes": of_host.causes,
        "windows": of_windows.windows, "diagnose": of_windows.diagnose, "tables": of_windows.describe, "rows": of_windows.rows,
        "verdicts": of_service.verdicts, "blackbox_list": of_service.blackbox_list, "blackbox": of_service.blackbox,
        "ledger": of_service.ledger,
    }  # fmt: skip


def serve(line: Connection, parent: int, places: Places, most_bytes: int) -> None:
    """Answer questions that come on `line` until the server (`parent`: its pid) ends; runs in the worker."""
    if not end_with(parent):
        return
    os.dup2(2, 1)
    spare_pandas()
    kept = Kept()
    while True:
        try:
            question = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        line.send_bytes(
            json.dumps(respond(question, places, kept, most_bytes), ensure_ascii=False).encode("utf-8", "replace")
        )


def respond(question: Mapping[str, Any], places: Places, kept: Kept, most_bytes: int) -> dict[str, Any]:
    """Answer one question: {"answer": the envelope}, or {"error": why not, in one line}."""
    tool, arguments = question["tool"], question["arguments"]
    try:
        if tool == "more":
            return {"answer": packed_rest(arguments["cursor"], kept, most_bytes)}
        return {"answer": packed(tool, calls()[tool](places, arguments), kept, most_bytes)}
    except RankscopeError as error:
        return {"error": _line(f"{error}. {error.help.replace('COMMAND', tool)}")}
    except PermissionError as error:
        return {"error": _line(f"{error}. The server must run as root for this.")}
    except (OSError, MemoryError, ImportError) as error:
        return {"error": _line(f"{type(error).__name__}: {error}")}
    except Exception as error:  # a fault of ours ends one answer, not the server
        return {"error": _line(f"internal error: {type(error).__name__}: {error}")}


def _line(text: str) -> str:
    """Clean a text into one line, and cut it."""
    return clean(" ".join(text.split()), 600)
