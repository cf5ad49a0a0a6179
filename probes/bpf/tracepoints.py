"""What a program at a tracepoint is given: structures in C, as this kernel says in tracefs that its records are.

A program at the tracepoint category:name takes a `struct rs_at__category__name *`. bcc would make such structures itself, with the
kernel's names of types, for which it needs the kernel's headers.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from rankscope.probes.bpf.compiler.compiled import CompileFailed
from rankscope.probes.host.procfs import ROOT, read_file

TRACEFS = (Path("sys/kernel/tracing"), Path("sys/kernel/debug/tracing"))
_ASKED = re.compile(r"\bstruct rs_at__(\w+?)__(\w+)\b")
_FIELD = re.compile(
    r"^\s*field:[^;]*?(\w+)(?:\[[^;]*\])?;\s*offset:(\d+);\s*size:(\d+);\s*signed:([01]);", re.MULTILINE
)
_INTEGERS = {1: "char", 2: "short", 4: "int", 8: "long long"}
_MOST_BYTES = 65536


def read(event: str, name: str, root: Path = ROOT) -> bytes:
    """The file `name` of a tracepoint category:name. FileNotFoundError where this kernel has none."""
    for folder in TRACEFS:
        with contextlib.suppress(FileNotFoundError):
            return read_file(str(root / folder / "events" / event.replace(":", "/") / name), _MOST_BYTES)
    raise FileNotFoundError(f"no tracepoint {event} in this kernel")


def declarations(text: str, root: Path = ROOT) -> str:
    """C of the structures that `text` asks for. CompileFailed where this kernel has no such tracepoint."""
    found = []
    for category, name in dict.fromkeys(_ASKED.findall(text)):
        try:
            layout = read(f"{category}:{name}", "format", root).decode("ascii", "replace")
        except OSError as error:
            raise CompileFailed(f"tracepoint {category}:{name}: {error.strerror or error}") from error
        found.append(structure(f"rs_at__{category}__{name}", layout))
    return "".join(found)


def structure(name: str, layout: str) -> str:
    """A `format` file as a structure on one line: numbers by their size, what is no number as bytes, gaps filled."""
    members, at = [], 0
    for field, offset, size, signed in _FIELD.findall(layout):
        if int(offset) < at:  # two names of one place: the first one has it
            continue
        if int(offset) > at:
            members.append(f"char rs_gap_{at}[{int(offset) - at}];")
        kind, at = _INTEGERS.get(int(size)), int(offset) + int(size)
        members.append(
            f"{'signed' if signed == '1' else 'unsigned'} {kind} {field};" if kind else f"char {field}[{size}];"
        )
    return f"struct {name} {{ {' '.join(members)} }};\n"
