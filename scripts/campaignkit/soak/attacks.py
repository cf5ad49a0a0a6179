"""What an unprivileged user of the host does beside the job, as long as a soak lasts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from campaignkit.chaos.faults.others import MAPPERS, PROBED
from campaignkit.chaos.job import Job
from campaignkit.chaos.users import SOMEBODY, mappings, offset_of
from labkit.machine.shell import run

_PROGRAMS = Path(__file__).with_name("programs")
_DAY_S = 86_400


@contextmanager
def _mapped_too_often(folder: Path, job: Job) -> Iterator[None]:
    with mappings(folder, job.library, offset_of(job.library, PROBED), MAPPERS, _DAY_S):
        yield


@contextmanager
def _program(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        command, user=SOMEBODY, group=SOMEBODY, cwd="/", env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _hostile_names(folder: Path, job: Job) -> Iterator[None]:
    """Processes that come and go under names that steer terminals, read as verdicts or hold keys, and that claim a rank of the job."""
    said = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(len(job.ranks)), "MASTER_ADDR": "127.0.0.1"}
    program = shutil.copy(_PROGRAMS / "names.py", folder)
    with _program([str(Path(sys.executable).resolve()), str(program), str(job.library)], said):
        yield


@contextmanager
def _forks(folder: Path, job: Job) -> Iterator[None]:
    """As fast as he may, with 64 processes at a time, at the lowest priority: the job is to be slowed by the observer alone."""
    program = folder / "spawner"
    run("cc", "-O1", "-o", program, _PROGRAMS / "spawner.c")
    with _program(["nice", "-n", "19", str(program)], {"PATH": os.environ["PATH"]}):
        yield


ATTACKS: dict[str, Callable[[Path, Job], AbstractContextManager[None]]] = {
    "mappings": _mapped_too_often,
    "names": _hostile_names,
    "forks": _forks,
}


@contextmanager
def attacked(names: list[str], folder: Path, job: Job) -> Iterator[None]:
    """All of these at once. The user may enter the folders of the job."""
    for one in (folder, job.folder.parent):
        one.chmod(0o711)
    with ExitStack() as held:
        for name in names:
            held.enter_context(ATTACKS[name](folder, job))
        yield
