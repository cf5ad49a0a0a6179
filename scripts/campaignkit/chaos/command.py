"""One run of the real command under a fault, and what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from campaignkit.chaos.job import Job
from labkit.machine.shell import rankscope

LATE_S = 15.0  # beyond the window
_GIVEN_UP_S = 60.0  # beyond the window: longer than any deadline of ours, so that it is seen how late it was
VERDICTS = (0, 1, 2, 3)
ONE_LINE = (3, 64, 65, 69, 77)
TERMINATED = (130, -signal.SIGTERM)  # as Ctrl-C; by the kernel before Python runs
_MOST_LINES = 3  # of complaint
_LOOKS_EVERY_S = 0.05


class Whom(Enum):
    COMMAND = "command"  # the process that was started
    CHILD = "child"  # one that it has started: the one that observes, or what reads or attaches for it
    GROUP = "group"  # all of them at once


@dataclass(slots=True)
class Plan:
    """How a command is to be run. `place`: the folder for what it writes. `begins` is called right before it, `prepare` in the child.
    `whom` of its processes `signal` hits, `signal_after_s` after it began; `which` of its children, 0 to 1, by their ages. `by`: what runs
    it in place of the installed command. `shown`: what is wrong with what it told, where a fault must show there. `forks_s`: what a
    prober of forks has measured by the end of the fault."""

    place: Path
    environment: dict[str, str] = field(default_factory=dict)
    begins: Callable[[], None] | None = None
    prepare: Callable[[], None] | None = None
    signal_after_s: float | None = None
    signal: signal.Signals = signal.SIGTERM
    whom: Whom = Whom.COMMAND
    which: float = 0.0
    meanwhile: Callable[[], None] | None = None  # again and again while it runs
    jobs: Sequence[Job] = ()  # observed beside the usual one, and judged as that one
    by: Sequence[str] = ()
    shown: Callable[[Ended], list[str]] | None = None
    group: int | None = None  # whose what it makes is (leftovers.py); None: root's
    forks_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """`code` as subprocess says it. `processes`: names of what it left running. `by`: who killed it, if not the fault. `session`: of it and
    of all that it started. `queued_s`: of its seconds, how long its processes stood in the queue for a CPU, behind others of the host.
    `terminated`: it was told to end by SIGTERM."""

    code: int
    seconds: float
    said: str
    complained: str
    killed: bool
    processes: tuple[str, ...]
    by: str = ""
    session: int = 0
    queued_s: float = 0.0
    terminated: bool = False

    def problems(self, window_s: float) -> list[str]:
        """What must not be, whatever the fault."""
        found = []
        if self.seconds - self.queued_s > window_s + LATE_S:
            queued = f", {self.queued_s:.1f} s of them in the queue for a CPU" if self.queued_s >= 0.1 else ""
            found.append(f"took {self.seconds:.1f} s{queued}")
        if self.processes:
            found.append(f"left running: {', '.join(self.processes)}")
        if self.killed:
            return found
        if self.code not in (*VERDICTS, *ONE_LINE, *(TERMINATED if self.terminated else ())):
            found.append(f"exit {self.code}{f', {self.by}' if self.by else ''}")
        if "Traceback" in self.complained:
            found.append("a traceback")
        lines = [line for line in self.complained.splitlines() if line.startswith("rankscope: ")]
        if self.code in ONE_LINE and self.code not in VERDICTS and not 1 <= len(lines) <= _MOST_LINES:
            found.append(f"{len(lines)} lines of complaint")
        if self.code in VERDICTS and not self.said.strip() and not lines and not self.terminated:
            found.append("nothing said")
        return found

    @property
    def outcome(self) -> str:
        return (
            "killed" if self.killed or self.code in TERMINATED else "verdict" if self.code in VERDICTS else "one line"
        )

    @property
    def last_words(self) -> str:
        """Its complaint, else what it said last; of one that was killed, what it was doing."""
        if self.killed:
            return self.complained.rstrip().rpartition("\n")[2] or "starting"
        complaints = [line for line in self.complained.splitlines() if line.startswith("rankscope: ")]
        return (complaints or self.said.strip().splitlines() or [""])[-1]


def run(arguments: Sequence[str], plan: Plan, window_s: float) -> Ended:
    """The command to its end; killed with all its processes where it does not come."""
    if plan.begins is not None:
        plan.begins()
    environment = {**os.environ, **plan.environment}
    began = time.monotonic()
    child = subprocess.Popen(
        [*(plan.by or (rankscope(),)), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment, preexec_fn=plan.prepare, start_new_session=True, cwd="/", group=plan.group,  # noqa: PLW1509 - no threads of ours run yet
    )  # fmt: skip
    texts: dict[str, bytes] = {}
    readers = [
        threading.Thread(target=lambda name=name, pipe=pipe: texts.__setitem__(name, pipe.read()), daemon=True)
        for name, pipe in (("said", child.stdout), ("complained", child.stderr))
    ]
    for reader in readers:
        reader.start()
    asked_s = plan.signal_after_s or 0.0 if plan.signal is not signal.SIGKILL else 0.0  # until then it need not end
    hit, given_up, starved = False, False, _starved()
    queued_s: dict[int, float] = {}
    looked = 0.0
    while child.poll() is None:
        spent = time.monotonic() - began
        if plan.signal_after_s is not None and spent >= plan.signal_after_s and not hit:
            hit = _hit(child.pid, plan)
        if spent > window_s + _GIVEN_UP_S + asked_s and not given_up:
            child.kill()
            given_up = True
        if spent - looked > _LOOKS_EVERY_S:
            looked = spent
            queued_s |= {pid: waited for pid in (child.pid, *_children(child.pid)) if (waited := _queued_s(pid))}
        if plan.meanwhile is not None:
            plan.meanwhile()
        time.sleep(0.005)
    seconds = time.monotonic() - began
    left = _left(child.pid)
    for reader in readers:
        reader.join(2.0)
    said, complained = (texts.get(name, b"").decode("utf-8", "replace") for name in ("said", "complained"))
    by = ""
    # Where one of its children was hit, the command goes on, and is judged as ever; so is one that ended before its moment.
    killed = hit and plan.whom is not Whom.CHILD and child.returncode == -signal.SIGKILL
    if child.returncode == -signal.SIGKILL and not killed:
        out_of_memory = (
            "by the kernel, which had no more memory" if _starved() > starved else "by somebody else on this host"
        )
        by = "by us, as it did not end" if given_up else out_of_memory
    seconds = max(0.0, seconds - asked_s)
    terminated = hit and plan.signal is signal.SIGTERM
    return Ended(
        child.returncode, seconds, said, complained, killed, left, by, child.pid, sum(queued_s.values()), terminated
    )


def _hit(pid: int, plan: Plan) -> bool:
    """Send the signal of the plan. Whether anybody was hit: a child may not have been started yet."""
    with contextlib.suppress(ProcessLookupError):
        if plan.whom is Whom.GROUP:
            os.killpg(pid, plan.signal)
            return True
        below = sorted(_of_session(pid).keys() - {pid}) if plan.whom is Whom.CHILD else [pid]
        if below:
            os.kill(below[int(plan.which * len(below))], plan.signal)
            return True
    return False


def _queued_s(pid: int) -> float:
    """How long the first thread of a process has waited for a CPU, ready to run. 0 where the kernel does not count that.

    The command and the process that observes for it take turns, so that theirs add up.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _starved() -> int:
    """How many processes the kernel has ended for want of memory since it was started."""
    for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _left(session: int, patience_s: float = 5.0) -> tuple[str, ...]:
    """Processes of that session that do not end by themselves; they are killed then."""
    end = time.monotonic() + patience_s
    while (found := _of_session(session)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return tuple(found.values())


def _of_session(session: int) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
                state, _, _, its_session, *_ = rest.split()
                if int(its_session) == session and state != "Z":
                    found[int(folder.name)] = name.partition("(")[2]
    return found
