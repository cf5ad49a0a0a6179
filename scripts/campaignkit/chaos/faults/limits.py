"""Limits of the command's own process, its clock, and its end."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from signal import SIGKILL

from campaignkit.chaos.command import Ended, Plan, Whom
from campaignkit.chaos.job import build
from campaignkit.chaos.scene import DIAGNOSE, RECORD, SWEEP, WATCH, Kind, Scene, asking_for_a_look

_PR_CAPBSET_DROP, _CAP_SYS_RESOURCE = 24, 24
_libc = ctypes.CDLL(None)
# Of the time that a command takes: where its window lies, within which it surely asks what time it is.
_WINDOW, _ASKED_UNTIL = (0.5, 0.8), 0.5


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
    """Evenly over the time that it takes, every other time while the window runs, as a rule: its clock tells another hour from then on."""

    @contextmanager
    def jump(scene: Scene) -> Iterator[Plan]:
        first, last = _WINDOW if scene.seed % 2 else (0.0, 1.0)
        library, count = scene.job.folder / "clock.so", scene.folder / "jumped"
        count.write_bytes(bytes(8))
        preloaded = {"LD_PRELOAD": str(library if library.exists() else build("clock.c", library))}  # made once
        plan = Plan(scene.folder, {**preloaded, "CHAOS_JUMP_S": str(by_s), "CHAOS_JUMPED": str(count)})
        after_s = (first + scene.moment * (last - first)) * scene.running_s

        def begins() -> None:
            plan.environment["CHAOS_JUMP_AT"] = str(time.monotonic() + after_s)

        def shown(ended: Ended) -> list[str]:
            # It asks as it begins, for the window, and as it writes: where nobody asked again, the moment was its last.
            unseen = not int.from_bytes(count.read_bytes(), "little") and after_s < _ASKED_UNTIL * ended.seconds
            return ["it was never told the other time"] if unseen else []

        plan.begins, plan.shown = begins, shown
        yield plan

    return jump


@contextmanager
def killed(scene: Scene) -> Iterator[Plan]:
    """The command itself in two of four cases, in one all of its processes at once, in one a process that it has started: then it goes on,
    and has to end well; of a service, which does not end, the command itself or all of them."""
    whom = (Whom.COMMAND, Whom.CHILD, Whom.COMMAND, Whom.GROUP)[scene.seed % 4]
    if scene.command == WATCH and whom is Whom.CHILD:
        whom = Whom.COMMAND
    plan = asking_for_a_look(scene)
    plan.signal_after_s, plan.signal = scene.moment * scene.running_s, SIGKILL
    plan.whom, plan.which = whom, scene.chance.random()
    yield plan


@contextmanager
def told_to_end(scene: Scene) -> Iterator[Plan]:
    """By SIGTERM, as systemd and Kubernetes do."""
    plan = asking_for_a_look(scene)
    plan.signal_after_s = scene.moment * scene.running_s
    yield plan


KINDS = (
    Kind("nothing", "no fault", (RECORD, DIAGNOSE, SWEEP), untouched, harmless=True),
    Kind("descriptors", "EMFILE: 8 to 192 descriptors", (RECORD, DIAGNOSE, SWEEP), descriptors),
    Kind("memory", "ENOMEM: 60 to 900 MB of addresses", (RECORD, DIAGNOSE, SWEEP), memory),
    Kind("clock-forward", "its clock jumps an hour on", (RECORD, DIAGNOSE, SWEEP), clock(3600), harmless=True),
    Kind("clock-back", "its clock jumps an hour back", (RECORD, DIAGNOSE, SWEEP), clock(-3600), harmless=True),
    Kind("killed", "SIGKILL at a random moment, of the command or others of its processes", (RECORD, RECORD, DIAGNOSE, WATCH), killed),
    Kind("terminated", "SIGTERM at a random moment", (RECORD, DIAGNOSE, WATCH), told_to_end),
)  # fmt: skip
