"""Other users of the host: what they do on purpose, and a job of theirs that must come to no harm."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from campaignkit.chaos.command import Ended, Plan
from campaignkit.chaos.job import Job, running
from campaignkit.chaos.scene import DIAGNOSE, RECORD, WATCH, Kind, Scene, asking_for_a_look
from campaignkit.chaos.users import Forks, forks, holder, mappings, offset_of
from rankscope.probes.bpf import warden

PROBED = "_ZN4gloo9allreduceERNS_16AllreduceOptionsE"  # in programs/library.c
MAPPERS = 4
VICTIM = 12_345  # a user who has nothing but his job
# Longest fork that is allowed: 0.1 s where a CPU is free, up to a second where none is (observer/apart/README.md); without the defence it
# is 4 to 10 s. By a user's file server, what the program beside the command takes to see it (probes/bpf/warden.py).
LONGEST_S = 1.0
CUT_OFF_S = (warden.LOOKS + 6) * warden.LOOKS_EVERY_S
_LOOKED_EVERY_S = 0.1


@contextmanager
def mapped_too_often(scene: Scene) -> Iterator[Plan]:
    """A page of the job's probed library, some 240,000 times."""
    _let_enter(scene)
    with (
        mappings(scene.folder, scene.job.library, offset_of(scene.job.library, PROBED), MAPPERS),
        forks(scene.folder) as probing,
    ):
        plan = asking_for_a_look(scene)
        yield _timing(plan, probing, LONGEST_S)


@contextmanager
def hanging_server(scene: Scene) -> Iterator[Plan]:
    """A process that maps the job's library keeps its memory from everybody, by a file server that does not answer."""
    _let_enter(scene)
    with forks(scene.folder) as probing, holder(scene.folder, scene.job.library) as one:
        plan = asking_for_a_look(scene)
        plan.begins = one.hold
        yield _timing(plan, probing, CUT_OFF_S)


@contextmanager
def job_of_another(scene: Scene) -> Iterator[Plan]:
    """It is observed as well; nobody traces it, and nothing comes into its folder."""
    _let_enter(scene)
    folder = scene.folder / "theirs"
    with running(folder, 2, _copy(scene.job.library, folder), user=VICTIM) as job:
        plan = asking_for_a_look(scene)
        before, traced = _names(folder), _Traced(job)
        ask = plan.meanwhile

        def meanwhile() -> None:
            traced.look()
            if ask is not None:
                ask()

        def shown(_: Ended) -> list[str]:
            more = sorted(_names(folder) - before)
            found = [f"in the folder of another user's job: {', '.join(more)}"] if more else []
            return found + (["a rank of another user was traced"] if traced.seen else [])

        plan.jobs, plan.meanwhile, plan.shown = (job,), meanwhile, shown
        yield plan


class _Traced:
    """Whether anybody traces a rank, looked at now and then."""

    def __init__(self, job: Job) -> None:
        self._job, self._looked_s, self.seen = job, 0.0, False

    def look(self) -> None:
        if time.monotonic() - self._looked_s < _LOOKED_EVERY_S:
            return
        self._looked_s = time.monotonic()
        texts = [Path(f"/proc/{pid}/status").read_text(encoding="utf-8") for pid in self._job.pids]
        self.seen |= any("TracerPid:\t0\n" not in text for text in texts)


def _timing(plan: Plan, probing: Forks, most_s: float) -> Plan:
    def shown(_: Ended) -> list[str]:
        plan.forks_s.append(probing.longest_s())
        return [f"a fork of the host took {plan.forks_s[-1]:.2f} s"] if plan.forks_s[-1] > most_s else []

    probing.longest_s()
    plan.shown = shown
    return plan


def _let_enter(scene: Scene) -> None:
    """Other users may enter the folders of the case and of the job, and read the library."""
    for folder in (scene.folder, scene.job.folder.parent):
        folder.chmod(0o711)


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _copy(library: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copy(library, folder / library.name))


KINDS = (
    Kind("mappings", "another user maps a probed page very often", (RECORD, DIAGNOSE, WATCH), mapped_too_often, harmless=True),
    Kind("hanging-fuse", "another user's file server holds what a probe waits for", (RECORD, DIAGNOSE), hanging_server, harmless=True),
    Kind("others-job", "a job of an unprivileged user, which comes to no harm", (RECORD, DIAGNOSE, WATCH), job_of_another, harmless=True),
)  # fmt: skip
