"""Compiled probes: programs and the maps they use, as plain data that any process can load.

In: C and the compiler's flags. Out: `Compiled`. bcc compiles in a separate process
(compile_with_bcc.py): its memory is freed when it ends, and its messages are separate from ours.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankscope.probes.base import abilities
from rankscope.probes.base.errors import MissingFeature, RankscopeError

_COMPILER = Path(__file__).parent / "compile_with_bcc.py"
_NO_BCC = 3  # its exit code
_TIMEOUT_S = 120.0  # it takes 1.5 s; longer on a host that is short of memory or CPU


class BpfUnavailable(MissingFeature):
    """bcc cannot be used, or this kernel's BPF cannot."""

    help = "Run `rankscope doctor`: it names what is missing on this host."


class NoTracefs(BpfUnavailable):
    """The file system that describes tracepoints is not mounted."""

    help = "Mount it, as systemd does: mount -t tracefs none /sys/kernel/tracing."


class CompileFailed(RankscopeError):
    """The BPF C did not compile on this host."""

    help = "Run with -v for the compiler's output, and report it with the versions of kernel and bcc."
    exit_code = 69


class NotCompiled(RankscopeError):
    """These bytes are not what `to_bytes` made."""


@dataclass(frozen=True, slots=True)
class MapShape:
    """One map. `kind` and `flags` are the kernel's numbers, `key` and `leaf` bcc's descriptions of
    the C types (tables.py).
    """

    name: str
    kind: int
    key_bytes: int
    leaf_bytes: int
    max_entries: int
    flags: int
    key: Any
    leaf: Any


@dataclass(frozen=True, slots=True)
class ProgramCode:
    """One program. Instructions that need a map's descriptor hold its index in `Compiled.maps`."""

    name: str
    code: bytes


@dataclass(frozen=True, slots=True)
class LibraryStamp:
    """A library file of the compiler: path, size and time of change when it compiled."""

    path: str
    bytes: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """All programs and maps of one C text."""

    maps: tuple[MapShape, ...]
    programs: tuple[ProgramCode, ...]
    license: str
    compiler: tuple[LibraryStamp, ...]


def maker() -> str:
    """Return the source of the compiling program, which is part of the cache key."""
    return _COMPILER.read_text(encoding="utf-8")


def to_bytes(compiled: Compiled) -> bytes:
    """Encode as JSON, in the form that the compiler's process writes."""
    programs = [{"name": one.name, "code": base64.b64encode(one.code).decode()} for one in compiled.programs]
    return json.dumps(
        {
            "maps": [asdict(one) for one in compiled.maps],
            "programs": programs,
            "license": compiled.license,
            "compiler": [[one.path, one.bytes, one.changed_ns] for one in compiled.compiler],
        }
    ).encode()


def from_bytes(blob: bytes) -> Compiled:
    """Decode what `to_bytes` made. Raises NotCompiled."""
    try:
        said = json.loads(blob)
        return Compiled(
            tuple(MapShape(**one) for one in said["maps"]),
            tuple(ProgramCode(one["name"], base64.b64decode(one["code"], validate=True)) for one in said["programs"]),
            said["license"],
            tuple(LibraryStamp(*one) for one in said["compiler"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotCompiled(f"no compiled probes: {type(error).__name__}: {error}") from error


def is_of_this_compiler(compiled: Compiled) -> bool:
    """Tell whether the compiler's library files are unchanged since it compiled this; False where none is recorded.

    An updated compiler may have fixed a bug.
    """
    for library in compiled.compiler:
        try:
            status = Path(library.path).stat()
        except OSError:
            return False
        if (status.st_size, status.st_mtime_ns) != (library.bytes, library.changed_ns):
            return False
    return bool(compiled.compiler)


def compile_text(text: str, flags: Sequence[str], *, verbose: bool = False) -> Compiled:
    """Compile C with bcc. Raises BpfUnavailable, CompileFailed."""
    found = None if abilities.lacking(abilities.COMPILER) else importlib.util.find_spec("bcc")
    if found is None or found.origin is None:
        raise BpfUnavailable(
            f"the probes were not compiled ahead for these sources, and {sys.executable} cannot import bcc to compile them"
        )
    asked = {"text": text, "flags": list(flags), "bcc": str(Path(found.origin).parents[1])}
    try:
        done = subprocess.run(
            [sys.executable, "-I", _COMPILER],
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileFailed(f"the compiler did not run: {error}") from error
    said = done.stderr.decode("utf-8", "replace")
    if verbose and said:
        sys.stderr.write(said)
    if done.returncode == _NO_BCC:
        raise BpfUnavailable(f"the Python module bcc cannot be imported: {_complaint(said)}")
    if done.returncode:
        raise CompileFailed(
            f"the probes do not compile: {_complaint(said) or f'the compiler ended with {done.returncode}'}"
        )
    try:
        return from_bytes(done.stdout)
    except NotCompiled as error:
        raise CompileFailed(f"the compiler's answer is broken: {error}") from error


def _complaint(said: str) -> str:
    """Return the first line of compiler output with an error, else the last; at most 300 characters, '' for none."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "")[:300]
