"""Receive windows from a confined process that makes them; they are read as untrusted data.

They are passed as files in memory, sealed against changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.observer.apart import wire
from rankscope.observer.apart.broker import Broker
from rankscope.observer.apart.confined import Progress
from rankscope.observer.apart.run import run
from rankscope.observer.apart.wire import Client
from rankscope.observer.live import limits
from rankscope.probes.base.errors import BadData
from rankscope.probes.bpf import tables
from rankscope.probes.bpf.compiler.compiled import MapShape
from rankscope.probes.bpf.tables import Table

if TYPE_CHECKING:
    from rankscope.observer.window.folder import Window

_LONGEST_S = 4200.0  # seconds: the longest window, with what comes before and after it
_ARRAY = 2  # enum bpf_map_type
_TRIAL = MapShape("rs_trial", _ARRAY, 4, 4, 1, 0, "int", "int")
MakeWindows = Callable[[Progress], "Iterable[Window]"]
MakeMoments = Callable[[Progress], "Iterable[Sequence[Window]]"]


def windows_of(
    make: MakeWindows, progress: Progress, root: Path = Path("/"), *, longest_s: float = _LONGEST_S, verbose: bool = False
) -> list[Window]:  # fmt: skip
    """Collect the windows that `make` yields in a confined process, which may take `longest_s`.

    Raises what it raises; OutOfMemory, ObserverEnded, BadData.
    """
    found: list[Window] = []
    each_window(make, partial(_add, found), progress, root, longest_s=longest_s, verbose=verbose)
    return found


def each_window(
    make: MakeWindows, take: Callable[[Window], None], progress: Progress, root: Path = Path("/"), *,
    orders: Callable[[int], dict[str, Any]] | None = None, longest_s: float = _LONGEST_S, verbose: bool = False,
) -> None:  # fmt: skip
    """Call `take` with each window that `make` yields in a confined process, while that goes on.

    `orders`: called with that process's pid whenever it asks for an order; returns it, {} for none.
    Raises as `windows_of`.
    """

    def work(client: Client) -> None:
        """Send the windows, and the progress, of `make` from the confined process."""
        for window in make(lambda text: client.tell("say", text=text)):
            _tell(client, window)

    def heard(told: dict[str, Any], handed: Sequence[int]) -> bool:
        """Pass a received window to `take`; return False for any other message."""
        if told.get("what") != "window":
            return False
        take(parse_window(told, handed))
        return True

    _run(work, Broker(root=root, orders=orders), heard, progress, longest_s, verbose)


def each_moment(
    make: MakeMoments, take: Callable[[Sequence[Window]], None], progress: Progress, root: Path = Path("/"), *,
    longest_s: float = _LONGEST_S, verbose: bool = False,
) -> None:  # fmt: skip
    """Call `take` with all windows of one interval together, one per job, as `make` yields them in
    a confined process.

    Raises as `windows_of`.
    """
    moment: list[Window] = []

    def work(client: Client) -> None:
        """Send the windows of `make`, with a message after those of each interval."""
        for windows in make(lambda text: client.tell("say", text=text)):
            for window in windows:
                _tell(client, window)
            client.tell("moment")

    def heard(told: dict[str, Any], handed: Sequence[int]) -> bool:
        """Collect windows, and pass them to `take` at the end of their interval; return False for other messages."""
        if told.get("what") == "window":
            _add(moment, parse_window(told, handed))
        elif told.get("what") == "moment":
            take(tuple(moment))
            moment.clear()
        else:
            return False
        return True

    _run(work, Broker(root=root), heard, progress, longest_s, verbose)


def _add(found: list[Window], window: Window) -> None:
    """Append a window. Raises BadData beyond one window for each of the most jobs allowed."""
    if len(found) >= limits.JOBS:
        raise BadData(f"the observing process sent more than {limits.JOBS} windows")
    found.append(window)


def _run(
    work: Callable[[Client], None], broker: Broker, heard: Callable[[dict[str, Any], Sequence[int]], bool], progress: Progress,
    longest_s: float, verbose: bool,
) -> None:  # fmt: skip
    """Run `work` in a confined process for at most `longest_s` seconds, with a map to test for CAP_BPF.

    `heard` returns whether a message was a report; else `broker` answers it as a request. Raises as
    `run`.
    """
    trial = _trial(broker.root)
    try:
        run(work, broker, heard, progress, trial=trial, verbose=verbose, longest_s=longest_s)
    finally:
        if trial is not None:
            os.close(trial.map_fd)


def _trial(root: Path) -> Table | None:
    """Create a BPF map of one entry, to test whether maps can be read without CAP_BPF; None where there is no BPF."""
    try:
        return Table(_TRIAL, tables.possible_cpus(root))
    except (OSError, ValueError):
        return None  # no BPF here: loading the probes will report it


def _tell(client: Client, window: Window) -> None:
    """Send a window to the privileged process, as files in memory."""
    # here, as a waiting process has no use for it yet
    from rankscope.observer.window.folder import window_files

    files = window_files(window, brief=True)
    opened: list[int] = []
    try:
        for name, write in files.items():
            opened.append(wire.file_in_memory(name, write))
        client.tell("window", opened, files=list(files))
    finally:
        wire.close_all(opened)


def parse_window(told: dict[str, Any], handed: Sequence[int]) -> Window:
    """Read a window from the confined process, as untrusted data. Raises BadData, MemoryError."""
    from rankscope.observer.window.folder import read_files

    names = told.get("files")
    if not isinstance(names, list) or len(names) != len(handed) or not all(isinstance(one, str) for one in names):
        raise BadData("the observing process sent no window")
    wire.seal(handed)
    files = {name: Path(f"/proc/self/fd/{descriptor}") for name, descriptor in zip(names, handed, strict=True)}
    try:
        return read_files(Path("the observed window"), lambda name: files.get(name, Path("/nonexistent")))
    except BadData as error:
        if isinstance(error.__cause__, MemoryError):  # the window is not at fault
            raise MemoryError from error
        raise
