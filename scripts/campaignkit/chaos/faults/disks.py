"""Disks that are full, read-only, or broken; names that are changed while they are in use."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from campaignkit.chaos.command import Plan
from campaignkit.chaos.job import LIBRARY, running
from campaignkit.chaos.scene import DIAGNOSE, RECORD, SWEEP, Kind, Scene
from labkit.machine.served import served
from labkit.machine.shell import run

_SOMEBODY = 65534


@contextmanager
def small(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own, in memory."""
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", place)
    try:
        yield place
    finally:
        run("umount", "-l", place)


@contextmanager
def full(scene: Scene) -> Iterator[Plan]:
    """Full from the first, or after a few kilobytes more."""
    with small(scene.folder / "disk", "256k") as disk:
        room = scene.chance.choice((0, 4096, 16384, 49152))
        with (disk / "ballast").open("wb", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(bytes(4096))
            file.truncate(max(0, file.tell() - room))
        yield Plan(disk)


@contextmanager
def read_only(scene: Scene) -> Iterator[Plan]:
    with small(scene.folder / "disk", "1m") as disk:
        run("mount", "-o", "remount,ro", disk)
        yield Plan(disk)


@contextmanager
def broken(scene: Scene) -> Iterator[Plan]:
    """Every write fails with EIO."""
    with served(scene.folder / "disk", scene.job.library, "broken"):
        yield Plan(scene.folder / "disk")


@contextmanager
def dead_below_a_rank(scene: Scene) -> Iterator[Plan]:
    """A second job whose library lies on a file system that stops answering; what its rank needs of it is in memory, so that it steps."""
    place = scene.folder / "dead"
    with (
        served(place, scene.job.library, "whole") as server,
        running(scene.folder / "second", 1, place / LIBRARY) as job,
    ):
        server.send_signal(signal.SIGSTOP)
        yield Plan(scene.folder, jobs=(job,))


@contextmanager
def swapped_library(scene: Scene) -> Iterator[Plan]:
    """The name of the mapped library becomes a FIFO, links, a folder, nothing, all the time."""
    library = scene.job.library
    kept = library.with_name("kept")
    os.link(library, kept)
    turns = itertools.cycle(scene.chance.sample(("fifo", "link", "loop", "folder", "nothing", "device"), 6))

    def swap() -> None:
        with suppress(OSError):
            library.rmdir() if library.is_dir() and not library.is_symlink() else library.unlink(missing_ok=True)
            _become(library, next(turns))

    try:
        swap()
        yield Plan(scene.folder, meanwhile=swap)
    finally:
        if library.is_dir() and not library.is_symlink():
            library.rmdir()
        kept.replace(library)


def _become(path: Path, what: str) -> None:
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to("/etc/shadow")
    elif what == "loop":
        path.symlink_to(path)
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")


@contextmanager
def swapped_output(scene: Scene) -> Iterator[Plan]:
    """What the command writes into becomes another user's link to another folder, or a FIFO: from the first, or while it runs."""
    place, elsewhere = scene.folder / "place", scene.folder / "elsewhere"
    place.mkdir(mode=0o700)
    elsewhere.mkdir(mode=0o700)
    at_once, fifo = scene.chance.random() < 0.5, scene.chance.random() < 0.5
    away = itertools.count()

    def bend(path: Path) -> None:
        path.symlink_to(elsewhere)
        os.lchown(path, _SOMEBODY, _SOMEBODY)  # links of root are followed: they are the operator's

    def swap() -> None:
        for name in ("out", "history", "state"):
            if (place / name).is_dir() and not (place / name).is_symlink():
                (place / name).rename(scene.folder / f"moved-{next(away)}")
                bend(place / name)

    if at_once:
        for name in ("out", "history", "state"):
            os.mkfifo(place / name) if fifo else bend(place / name)
    yield Plan(place, meanwhile=None if at_once else swap)
    if any(elsewhere.iterdir()):
        raise AssertionError("something was written where a link led")


KINDS = (
    Kind("disk-full", "ENOSPC: at once, or after some kilobytes", (RECORD, DIAGNOSE, SWEEP), full),
    Kind("read-only", "EROFS", (RECORD, DIAGNOSE, SWEEP), read_only),
    Kind("io-error", "EIO from a file system in user space", (RECORD, SWEEP), broken),
    Kind("dead-disk", "a rank's library on a file system that has stopped answering", (RECORD, DIAGNOSE), dead_below_a_rank, harmless=True),
    Kind("swapped-library", "a rank's library becomes a FIFO, links, nothing, in turn", (RECORD, DIAGNOSE), swapped_library, harmless=True),
    Kind("swapped-output", "what is written into becomes a link or a FIFO", (RECORD, DIAGNOSE, SWEEP), swapped_output),
)  # fmt: skip
