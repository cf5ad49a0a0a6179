"""Limits of the command's own process, its clock, and its end."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from chaoskit.command import Plan, Whom
from chaoskit.job import build
from chaoskit.scene import DIAGNOSE, RECORD, SWEEP, Kind, Scene

_PR_CAPBSET_DROP, _CAP_SYS_RESOURCE = 24, 24
_libc = ctypes.CDLL(None)


def _limited(what: int, most: int) -> Callable[[], None]:
    def prepare() -> None:
        # Root may raise its limits again; not without this capability.
        _libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_RESOURCE, 0, 0, 0)
        resource.setrlimit(what, (most, most))

    return prepare


@contextmanager
def untouched(scene: Scene) -> Iterator[Plan]:
    yield Plan(scene.folder)


@contextmanager
def descriptors(scene: Scene) -> Iterator[Plan]:
    most = scene.chance.choice((8, 12, 16, 24, 32, 48, 64, 96, 128, 192))
    yield Plan(scene.folder, prepare=_limited(resource.RLIMIT_NOFILE, most))


@contextmanager
def memory(scene: Scene) -> Iterator[Plan]:
    yield Plan(scene.folder, prepare=_limited(resource.RLIMIT_AS, scene.chance.randrange(60, 900) << 20))


def clock(by_s: float) -> Callable[[Scene], AbstractContextManager[Plan]]:
    @contextmanager
    def jump(scene: Scene) -> Iterator[Plan]:
        at = time.monotonic() + scene.moment * scene.running_s
        library = scene.job.folder / "clock.so"  # made once
        preloaded = {"LD_PRELOAD": str(library if library.exists() else build("clock.c", library))}
        yield Plan(scene.folder, {**preloaded, "CHAOS_JUMP_AT": str(at), "CHAOS_JUMP_S": str(by_s)})

    return jump


@contextmanager
def killed(scene: Scene) -> Iterator[Plan]:
    """The command itself in two of four cases, in one all of its processes at once, in one a process that it has started: then it goes on,
    and has to end well."""
    whom = (Whom.COMMAND, Whom.CHILD, Whom.COMMAND, Whom.GROUP)[scene.seed % 4]
    yield Plan(scene.folder, kill_after_s=scene.moment * scene.running_s, whom=whom, which=scene.chance.random())


KINDS = (
    Kind("nothing", "no fault", (RECORD, DIAGNOSE, SWEEP), untouched),
    Kind("descriptors", "EMFILE: 8 to 192 descriptors", (RECORD, DIAGNOSE, SWEEP), descriptors),
    Kind("memory", "ENOMEM: 60 to 900 MB of addresses", (RECORD, DIAGNOSE, SWEEP), memory),
    Kind("clock-forward", "its clock jumps an hour on", (RECORD, DIAGNOSE, SWEEP), clock(3600)),
    Kind("clock-back", "its clock jumps an hour back", (RECORD, DIAGNOSE, SWEEP), clock(-3600)),
    Kind("killed", "SIGKILL at a random moment, of the command, all its processes, or one of them", (RECORD, RECORD, DIAGNOSE), killed),
)  # fmt: skip
