"""Publish data of the service's jobs: the black box, frozen at a hang or a death, and metrics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose.service.alarms import AlarmKind
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.states import box_line, rank_state, usual_s
from rankscope.diagnose.service.tell.metrics import (
    SUSPECTS_EACH,
    SUSPECTS_MOST,
    EndedJob,
    JobState,
    Names,
    ServiceState,
    as_prometheus,
    families,
)
from rankscope.diagnose.service.tell.otlp import Otlp
from rankscope.diagnose.service.tell.suspects import SuspectState
from rankscope.diagnose.service.voice import Voice
from rankscope.observer.watch.blackbox import FROZEN_MOST, BlackBox
from rankscope.observer.watch.tier0 import Beat, Tier0
from rankscope.probes.base.errors import RankscopeError

_BOX_EVERY_S = 5.0
_METRICS_EVERY_S = 15.0
_DEAD_S = 900.0  # series of a job that ended by a failure: longer than a scraper or an alert waits


@dataclass(slots=True)
class Evidence:
    """Outputs about the jobs: black box and metrics.

    `metrics`: a file for `write_metrics`; `scraped`: answers scrapes of the metrics; `otlp`: sends to a
    collector; `ledger`: seconds and number of events of a job by kind, at a time.
    """

    tier0: Tier0
    box: BlackBox
    voice: Voice
    metrics: Path | None
    write_metrics: Callable[[Path, str], None]
    scraped: Callable[[Callable[[], str]], None] | None
    otlp: Otlp | None
    ledger: Callable[[str, float], Mapping[str, tuple[float, int]]] = lambda _, __: {}
    host: str = field(default_factory=lambda: os.uname().nodename)
    _names: Names = field(default_factory=Names, init=False)
    _labels: Names = field(default_factory=lambda: Names(SUSPECTS_EACH, SUSPECTS_MOST), init=False)
    _dead: dict[str, tuple[float, EndedJob]] = field(default_factory=dict, init=False)  # since when

    def died(self, job: WatchedJob, now_s: float) -> None:
        """Remember for the metrics that a rank of this job died here; the job may be gone before the next scrape."""
        name = job.watch.job
        if self._names.has_room(name, job.user, now_s):
            self._dead.pop(name, None)
            self._dead[name] = now_s, EndedJob(name, job.user, self._with_room(job, now_s))

    def freeze(self, job: WatchedJob, event: Event) -> None:
        """Freeze the job's last minutes in the black box; if frozen already, add `event` as its verdict.

        Nothing is frozen above the limit of the job's user; that, and errors, are reported.
        """
        content = event.as_json(self.host)
        try:
            if job.frozen is not None:
                self.box.add(job.frozen, "verdict.json", json.dumps(content, indent=2).encode())
                return
            if not self.box.may_freeze(job.user, time.monotonic()):
                words = f"not all of what dies of {job.user} is kept: the last {FROZEN_MOST} died within minutes"
                self.voice.complain_once(f"frozen {job.user}", words, time.monotonic())
                return
            job.frozen = self.box.freeze(job.watch.job, content, event.at, job.user)
        except (OSError, RankscopeError) as error:
            self.voice.complain(f"the black box cannot be written: {error}")
            return
        self.voice.say(Event("frozen", event.at, f"the last minutes are kept in {job.frozen}", event.job))

    def keep(self, beat: Beat, jobs: Mapping[str, WatchedJob], own: Callable[[], ServiceState]) -> None:
        """Append to the black box, answer scrapes, and write or send the metrics, each as often as it is due.

        Errors are reported. `own`: returns the service's own state.
        """
        if self.voice.is_due("box", beat.at_s, _BOX_EVERY_S):
            try:
                for name, job in jobs.items():
                    self.box.append(self._box_line(name, job, beat), time.time(), job.user)
            except (OSError, RankscopeError) as error:
                self.voice.complain_once("box", f"the black box cannot be written: {error}", beat.at_s)
        if self.scraped is not None:
            self.scraped(lambda: as_prometheus(self._states(beat, jobs), own(), self._ended(beat.at_s)))
        if self.voice.is_due("metrics", beat.at_s, _METRICS_EVERY_S):
            self._tell_metrics(beat, jobs, own)

    def close(self, own: Callable[[], ServiceState]) -> None:
        """Stop sending metrics, and write the metrics file without jobs, as none is watched any more."""
        if self.otlp is not None:
            self.otlp.close()
        if self.metrics is not None:
            try:
                self.write_metrics(self.metrics, as_prometheus((), own()))
            except (OSError, RankscopeError) as error:
                self.voice.complain(f"the metrics cannot be written: {error}")

    def _box_line(self, name: str, job: WatchedJob, beat: Beat) -> dict[str, object]:
        """Build the black box's line of a job: its ranks' last steps, usual step time, named cause and troubles."""
        line = box_line(name, self.tier0.of_job(name), beat, _BOX_EVERY_S)
        troubles = sorted(kind.value for kind in job.troubles)
        return line | {"title": job.title, "usual_s": job.watch.step_s, "named": job.named, "troubles": troubles}

    def _tell_metrics(self, beat: Beat, jobs: Mapping[str, WatchedJob], own: Callable[[], ServiceState]) -> None:
        """Write the metrics file and send the metrics over OTLP, where configured; report errors every 10 min at most."""
        if self.metrics is not None:
            try:
                text = as_prometheus(self._states(beat, jobs), own(), self._ended(beat.at_s))
                self.write_metrics(self.metrics, text)
            except (OSError, RankscopeError) as error:
                self.voice.complain_once("metrics", f"the metrics cannot be written: {error}", beat.at_s)
        if self.otlp is not None:
            trouble = self.otlp.send(families(self._states(beat, jobs), own(), self._ended(beat.at_s)))
            if trouble:
                self.voice.complain_once("otlp", f"no metrics over OTLP: {trouble}", beat.at_s)

    def _ended(self, now_s: float) -> list[EndedJob]:
        """List jobs in which a rank died here within the last `_DEAD_S` seconds, for metrics; forget older ones."""
        for name in [name for name, (since_s, _) in self._dead.items() if now_s - since_s > _DEAD_S]:
            del self._dead[name]
        return [ended for _, ended in self._dead.values()]

    def _with_room(self, job: WatchedJob, now_s: float) -> list[SuspectState]:
        """Select the job's suspects whose labels have metrics, or may get some: new ones are limited per day and user."""
        return [
            one for one in job.suspects
            if self._labels.has_room("\n".join((job.watch.job, *one.labels.values())), job.user, now_s)
        ]  # fmt: skip

    def _states(self, beat: Beat, jobs: Mapping[str, WatchedJob]) -> list[JobState]:
        """Describe for the metrics each job whose name has series already, or may get some."""
        return [
            JobState(
                job=name,
                ranks=[rank_state(one, beat) for one in self.tier0.of_job(name)],
                step_s=usual_s(self.tier0.of_job(name)),
                baseline_s=job.watch.step_s or float("nan"),
                steps=job.steps,
                slow=AlarmKind.SLOWER in job.troubles,
                hung=bool(job.troubles - {AlarmKind.SLOWER}),
                named=bool(job.named),
                inefficient=bool(job.wasted),
                alarms={kind.value: job.alarms[kind.value] for kind in AlarmKind},  # from 0 on, to see them grow
                windows=job.windows,
                lost_s=job.lost_s,
                user=job.user,
                ledger=self.ledger(name, beat.at_s),
                dead=AlarmKind.DEAD in job.troubles,
                suspects=self._with_room(job, beat.at_s),
            )
            for name, job in jobs.items()
            if self._names.has_room(name, job.user, beat.at_s)
        ]
