"""The outputs of a service with given jobs: what it writes into its textfile, without ranks that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch
from rankscope.diagnose.service.evidence import Evidence
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.looks import looking
from rankscope.diagnose.service.looks.look import Seen
from rankscope.diagnose.service.looks.looking import Looking
from rankscope.diagnose.service.tell.metrics import ServiceState
from rankscope.diagnose.service.voice import Voice
from rankscope.observer.watch.ranks import RankPulse
from rankscope.observer.watch.tier0 import Beat

OWN = ServiceState(1.5, 1 << 20, 0.1, 0, at=1.8e9)
ALARM = Alarm(AlarmKind.ROUTINE, "job", 1.0, "a window for the history")


def suspect(**more: Any) -> dict[str, Any]:
    """A suspect as a verdict's JSON has it: a slow link of rank 3."""
    return {
        "component": "network", "cause": "slow-link", "host": "host-3", "ranks": [3], "function": None, "instance": "eth0",
        "instances": [{"name": "eth0", "process": None, "pid": None}], "lost_seconds_per_step": 0.036, "lost_percent": 16.0,
        **more,
    }  # fmt: skip


def verdict(status: str = "fault", *suspects: dict[str, Any]) -> dict[str, Any]:
    return {"status": status, "suspects": list(suspects), "notes": []}


def pulse(number: int) -> RankPulse:
    """A rank that makes steps of 0.1 s, and waits a quarter of them."""
    rank = RankPulse(cast(Any, SimpleNamespace(pid=100 + number, identity=SimpleNamespace(rank=number))), 0.0, 0.0)
    rank.recent.extend((0.1 * at, 0.1, 0.025) for at in range(1, 30))
    return rank


class Host:
    """A service's outputs with its jobs; what it writes is kept. `ranks`: by job."""

    def __init__(
        self, *jobs: str, ranks: Mapping[str, Sequence[RankPulse]] | None = None,
        ledger: Callable[[str, float], Mapping[str, tuple[float, int]]] = lambda _, __: {},
    ) -> None:  # fmt: skip
        self.jobs = {name: WatchedJob(JobWatch(name), name, Allowance(), "user 1000") for name in jobs}
        self.text, self.now_s, self.complaints = "", 0.0, list[str]()
        voice = Voice(lambda _: None, self.complaints.append)
        tier0 = SimpleNamespace(of_job=lambda job: (ranks or {}).get(job, ()))
        box = SimpleNamespace(append=lambda *_: None, may_freeze=lambda *_: True, freeze=lambda *_: Path("frozen"))
        self.evidence = Evidence(
            cast(Any, tier0), cast(Any, box), voice, Path("x"), self._write, None, None, ledger, host="here"
        )
        self.looking = Looking(cast(Any, tier0), voice, self.evidence, self.jobs, Path("none"), None, False, None)

    def _write(self, _: Path, text: str) -> None:
        self.text = text

    def written(self, of: str = "rankscope_suspect", after_s: float = 60.0) -> dict[str, float]:
        """The series of this name, after a round."""
        self.now_s += after_s
        beat = Beat(self.now_s, {}, (), (), frozenset(), ())
        self.evidence.keep(beat, self.jobs, lambda: OWN)
        assert not self.complaints
        lines = (line.rpartition(" ") for line in self.text.splitlines() if line.startswith(f"{of}{{"))
        return {labels.removeprefix(of): float(value) for labels, _, value in lines}

    def sees(self, found: dict[str, Any], judged_by: str = "", job: str = "job") -> None:
        """Learn a verdict."""
        looking._name(self.jobs[job], Seen(ALARM, found, "", 1.0, judged_by=judged_by), found)
