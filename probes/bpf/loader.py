"""Compile, load and attach BPF programs through bcc, meter them, and always detach.

The probes of one observer are one translation unit: `load` joins their `*.bpf.c` files (each `#include "….h"` of ours is
put in once), so that they share the maps of common.bpf.h and the compiler runs once. Programs are then loaded and attached
one by one: what this kernel refuses is reported and the rest works.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.probes.bpf import headers, shared_uprobes, syscalls, uprobes
from rankscope.probes.errors import MissingFeature, NotPermitted, RankscopeError

_HERE = Path(__file__).resolve().parent  # of common.bpf.h
_INCLUDE = re.compile(r'^[ \t]*#include "([\w./-]+)"[^\n]*\n', re.MULTILINE)
_CHILD_WAITS_S = 0.3  # until the parent has closed its side
_PASSING = (errno.ENOMEM, errno.EAGAIN, errno.EINTR)
_PATIENCE_S, _PAUSE_S = 0.5, 0.1
_LOADS = 5  # as often as libbpf tries
_TRACEFS = (Path("sys/kernel/tracing"), Path("sys/kernel/debug/tracing"))


class BpfUnavailable(MissingFeature):
    """bcc, or BPF in this kernel, cannot be used."""

    help = "Run `rankscope doctor`; scripts/setup installs python3-bpfcc and kernel headers."


class CompileFailed(RankscopeError):
    """The BPF C did not compile under the headers of this host."""

    help = "Run with -v for the compiler's words, and report them with the kernel and header versions."
    exit_code = 69


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A program and the tracepoint that it is attached to."""

    function: str
    event: str  # category:name


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """What the kernel spent in one program since it was loaded."""

    program: str
    run_count: int
    run_time_ns: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A program that could not be attached, and why."""

    program: str
    reason: str


@dataclass(slots=True)
class Module:
    """A compiled set of probes. `bpf` is the bcc object; whoever holds the module closes it.

    `before_close` is called first of all; `held` are descriptors of attached probes that bcc knows nothing of. `at_once`:
    whether a program is attached to many functions in one call; false for kernels that cannot. `patience_s`: what is left to
    wait, in all, for places that may be free in a moment.
    """

    bpf: Any
    headers: headers.Headers
    refused: list[Refused] = field(default_factory=list)
    before_close: list[Callable[[], None]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    at_once: bool = True
    patience_s: float = _PATIENCE_S
    _programs: dict[str, Any] = field(default_factory=dict)
    _stats_fd: int = -1

    def attach(self, tracepoints: Sequence[Tracepoint]) -> None:
        """Load and attach each program; failures go to `refused`."""
        for point in tracepoints:
            try:
                self.program(point.function, tracepoint=True)
                self.bpf.attach_tracepoint(tp=point.event, fn_name=point.function)
            except Exception as error:
                self.refused.append(Refused(point.function, f"{point.event}: {_one_line(error)}"))

    def program(
        self, function: str, *, tracepoint: bool = False, perf_event: bool = False, attach_type: int = -1
    ) -> Any:
        """The loaded program `function`, remembered so that it is metered."""
        from bcc import BPF

        kind = BPF.TRACEPOINT if tracepoint else BPF.PERF_EVENT if perf_event else BPF.KPROBE
        tries = 0
        while function not in self._programs:
            tries += 1
            try:
                with _signals_wait():
                    self._programs[function] = self.bpf.load_func(function, kind, attach_type=attach_type)
            except Exception:
                if ctypes.get_errno() != errno.EAGAIN or tries == _LOADS:
                    raise
        return self._programs[function]

    def attach_uprobes(
        self, function: str, path: Path, offsets: Sequence[int], *, on_return: bool = False
    ) -> tuple[int, ...]:
        """Attach a program to functions at these file offsets; what `release` takes. Raises what the kernel says.

        What may be over in a moment (no memory, another tool that is about to end) is tried again.
        """
        while True:
            try:
                links = self._attach_uprobes(function, path, offsets, on_return)
            except (OSError, shared_uprobes.PlaceTaken) as error:
                if self.patience_s <= 0 or (isinstance(error, OSError) and error.errno not in _PASSING):
                    raise
                self.patience_s -= _PAUSE_S
                time.sleep(_PAUSE_S)
                continue
            self.held.update(links)
            return links

    def _attach_uprobes(self, function: str, path: Path, offsets: Sequence[int], on_return: bool) -> tuple[int, ...]:
        def attach(how: Callable[..., tuple[int, ...]], program: Any) -> tuple[int, ...]:
            return shared_uprobes.attach(
                lambda counters: how(program.fd, path, offsets, on_return=on_return, counters=counters), path, offsets
            )

        if self.at_once:
            program: Any = None
            try:
                program = self.program(function, attach_type=uprobes.TRACE_UPROBE_MULTI)
                return attach(uprobes.attach_many, program)
            except Exception:
                if program is not None and uprobes.knows_many(program.fd):
                    raise
                self._programs.pop(function, None)
                self.bpf.funcs.pop(function.encode(), None)
        links = attach(uprobes.attach_each, self.program(function))
        self.at_once = False  # one by one works: Linux before 6.6
        return links

    def release(self, descriptors: Sequence[int]) -> None:
        """Close descriptors of attached probes now."""
        for descriptor in descriptors:
            if descriptor in self.held:
                self.held.discard(descriptor)
                os.close(descriptor)

    def costs(self) -> tuple[ProgramCost, ...]:
        """Run count and time of every loaded program, from the kernel's statistics; empty where it keeps none."""
        if self._stats_fd < 0:
            return ()
        rows = []
        for name, program in sorted(self._programs.items()):
            stats = syscalls.program_stats(program.fd)
            rows.append(ProgramCost(name, stats.run_count, stats.run_time_ns))
        return tuple(rows)

    def counters(self, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """The slots of rs_counters, summed over CPUs."""
        table = self.bpf["rs_counters"]
        return tuple((name, int(sum(table[ctypes.c_int(slot)]))) for slot, name in enumerate(names))

    def close(self) -> None:
        """Detach everything and free the programs. Safe to call twice."""
        for end in self.before_close:
            end()
        self.before_close.clear()
        if self.bpf is not None:
            _let_a_child_detach()
            self.release(tuple(self.held))
            self.bpf.cleanup()
            self.bpf = None
        if self._stats_fd >= 0:
            os.close(self._stats_fd)
            self._stats_fd = -1


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold signals to this thread back: the verifier gives up with EAGAIN when one is pending (a resized terminal)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _let_a_child_detach() -> None:
    """Hold every attached probe in a child for a moment, so that closing it here costs nothing.

    The last close of a uprobe or tracepoint waits for RCU grace periods (0.14 and 0.07 s each, one after the other under
    the kernel's event_mutex: 5 s for all probes, measured), and a verdict must not wait for that. The child does nothing
    but exit; the kernel then detaches what it held. A second fork leaves no zombie in a parent that lives on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the child only exits
        child = os.fork()
    if child == 0:
        try:
            for standard in (0, 1, 2):  # or a pipe that our caller reads would stay open
                os.close(standard)
            if os.fork() == 0:
                time.sleep(_CHILD_WAITS_S)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def join(sources: Sequence[Path], folders: Sequence[Path]) -> str:
    """One text out of `sources`; our own includes are found beside the source, here or in `folders`, and put in once."""
    seen: set[Path] = set()

    def text_of(path: Path) -> str:
        if path in seen:
            return ""
        seen.add(path)

        def included(match: re.Match[str]) -> str:
            for folder in (path.parent, _HERE, *folders):
                if (folder / match.group(1)).is_file():
                    return text_of((folder / match.group(1)).resolve())
            raise CompileFailed(f"{path.name} includes {match.group(1)}, which is not there")

        return _INCLUDE.sub(included, path.read_text(encoding="utf-8")) + "\n"

    return "".join(text_of(source.resolve()) for source in sources)


def load(
    sources: Sequence[Path],
    *,
    defines: Mapping[str, int | str] | None = None,
    folders: Sequence[Path] = (),
    prelude: str = "",
    epilogue: str = "",
    root: Path = Path("/"),
    verbose: bool = False,
) -> Module:
    """Compile `sources` with `defines` as -D constants. NotPermitted, NoHeaders, BpfUnavailable, CompileFailed."""
    if os.geteuid() != 0:
        raise NotPermitted("loading kernel probes needs root")
    try:
        from bcc import BPF
    except ImportError as error:
        raise BpfUnavailable(f"the Python module bcc cannot be imported: {error}") from error
    found = headers.find(root)
    if found.source is not None:
        os.environ["BCC_KERNEL_SOURCE"] = str(found.source)
    _need_tracefs(root)
    stats_fd = -1
    with contextlib.suppress(OSError):
        stats_fd = syscalls.enable_stats()
    text = prelude + join(sources, folders) + epilogue
    flags = ["-Wno-everything", *(f"-D{name}={value}" for name, value in (defines or {}).items())]
    try:
        with _quiet_stderr(verbose) as said:
            bpf = BPF(text=text, cflags=flags)
    except Exception as error:
        if stats_fd >= 0:
            os.close(stats_fd)
        detail = next((line for line in said() if "error:" in line), _one_line(error))
        raise CompileFailed(f"the probes do not compile with {found.how}: {detail}") from error
    _return_memory()
    return Module(bpf, found, _stats_fd=stats_fd)


def _return_memory() -> None:
    """Give back what the compiler has freed (50 of 220 MB, measured), so that the window's own data does not come on top."""
    with contextlib.suppress(AttributeError):  # musl has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _need_tracefs(root: Path) -> None:
    """bcc reads tracepoint formats from tracefs. Where none is mounted, mount it in a mount namespace of our own."""
    if any((root / place / "events").is_dir() for place in _TRACEFS):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns, ms_private_rec = 0x00020000, (1 << 18) | (1 << 14)
    target = b"/sys/kernel/debug"
    if (
        libc.unshare(clone_newns) != 0
        or libc.mount(b"none", b"/", None, ms_private_rec, None) != 0
        or libc.mount(b"debugfs", target, b"debugfs", 0, None) != 0
    ):
        reason = os.strerror(ctypes.get_errno())
        raise BpfUnavailable(f"tracefs is not mounted and cannot be: {reason}")
    # Looking into debugfs mounts its tracing folder by itself; nothing of this is seen outside our namespace.
    if not (root / _TRACEFS[1] / "events").is_dir():
        libc.mount(b"tracefs", b"/sys/kernel/debug/tracing", b"tracefs", 0, None)


@contextlib.contextmanager
def _quiet_stderr(verbose: bool) -> Iterator[Any]:
    """Keep what clang and the verifier write to descriptor 2; yields a function that returns those lines."""
    if verbose:
        yield lambda: []
        return
    sys.stderr.flush()
    kept = os.memfd_create("rankscope-bcc-stderr", os.MFD_CLOEXEC)
    saved = os.dup(2)
    os.dup2(kept, 2)
    lines: list[str] = []
    try:
        yield lambda: lines
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        size = min(os.fstat(kept).st_size, 1 << 20)
        lines.extend(os.pread(kept, size, 0).decode("utf-8", "replace").splitlines())
        os.close(kept)


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
