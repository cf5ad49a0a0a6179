"""Crowds around the command: processes that come and go, more than it looks at, more than its maps in the kernel hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from campaignkit.chaos import told
from campaignkit.chaos.command import Ended, Plan
from campaignkit.chaos.job import PROGRAMS
from campaignkit.chaos.scene import DIAGNOSE, RECORD, Kind, Scene
from labkit.machine.shell import rankscope

_BLOWN_S = 1.0  # then as many end as begin
_FAMILY = 24  # children of a rank, with some threads each
# What is too small, and the losses of which one must be told then: the kernel's, or ours, who count its places by user. Not rs_takers and
# rs_stacks, where the oldest goes.
_SMALL = {
    "rs_targets=2": ("processes_without_room", "processes_over_budget"),
    "rs_pythreads=8": ("threads_without_room", "threads_over_budget"),
    "rs_threads=16": ("thread_map_full", "thread_share_full"),
    "rs_file_entries=1": ("file_map_full",),
    "rs_file_sums=2": ("file_map_full",),
    "rs_calls=1": ("call_map_full",),
    "rs_calls_open=1": ("call_map_full",),
    "ring=1": ("ring_full",),
    "rs_targets=2,rs_pythreads=8,rs_threads=16,rs_file_sums=2,rs_calls=1,rs_ended=2,rs_gils=1,rs_call_sums=1,rs_interpreters=2":
        ("thread_map_full", "thread_share_full", "processes_without_room", "processes_over_budget"),
}  # fmt: skip


@contextmanager
def _blowing(scene: Scene, words: str) -> Iterator[None]:
    scene.job.tell(words)
    try:
        time.sleep(_BLOWN_S)
        yield
    finally:
        scene.job.tell("")


def storm(words: str, *, watched: bool) -> Callable[[Scene], AbstractContextManager[Plan]]:
    """Below rank 0. `watched`: it is the rank's own children, and a window has to tell of them."""

    @contextmanager
    def blow(scene: Scene) -> Iterator[Plan]:
        def shown(ended: Ended) -> list[str]:
            found = list(told.windows(scene.folder))
            unseen = watched and found and not any(told.workers(window) for window in found)
            return ["no process of the storm was watched"] if unseen else []

        with _blowing(scene, words):
            yield Plan(scene.folder, shown=shown)

    return blow


@contextmanager
def full_maps(scene: Scene) -> Iterator[Plan]:
    """Maps for less than there is: each in turn, then all."""
    small = list(_SMALL)[scene.seed % len(_SMALL)]

    def shown(ended: Ended) -> list[str]:
        lost = told.lost(scene.folder, ended)
        return [] if lost.intersection(_SMALL[small]) else [f"no map was full ({small})"]

    python = Path(rankscope()).with_name("python")
    with _blowing(scene, f"family {_FAMILY}"):
        yield Plan(scene.folder, by=(str(python), "-I", str(PROGRAMS / "small.py"), small), shown=shown)


KINDS = (
    Kind("forks", "100 forks a second of a rank, each for 0.7 s", (RECORD, DIAGNOSE), storm("forks 100", watched=True), harmless=True),
    Kind("execs", "50 programs a second of a rank, each for 0.7 s", (RECORD, DIAGNOSE), storm("execs 50", watched=True), harmless=True),
    Kind("crowd", "thousands of threads and processes below a rank", (RECORD, DIAGNOSE), storm("crowd 9000", watched=False), harmless=True),
    Kind("full-maps", "maps in the kernel too small for a rank and its children", (RECORD, DIAGNOSE), full_maps, harmless=True),
)  # fmt: skip
