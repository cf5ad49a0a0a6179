"""What the judged steps are spent on, by rank and step: the input of every cause of waste.

The budget (infer/budget) has seconds per step and rank by kind of activity, as means. What an
activity took from single steps is estimated from what is known of them, so that the replay
(model/replay.py) can tell what a step would be without it:

events(r,s)  = seconds in the steps in which the observer saw the function pause rank r
longest(r,s) = without such steps: mean · steps, given to those steps in which the rank runs for
               longer than in its median step, by a quarter of a step, as far as it reaches; the
               rest evenly

A thread that runs also queues for a CPU, as long per second whatever it runs; without the activity
that queueing is gone too:

ran(r,s) = seconds in the step · (1 + queue(r,s) / running(r,s))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.budget.spent import CODE, Spent
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.scene import Scene, mean_step_s
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Spending:
    """The judged steps of a job, and the seconds per step of each row of its budget.

    `spent.seconds`: by row of the pattern table, fitted to the mean step of its rank.
    """

    fleet: Fleet
    scene: Scene
    spent: Spent

    @property
    def columns(self) -> int:
        """Number of judged steps: the last ones of the window."""
        return int(self.scene.own.shape[1])

    @property
    def step_s(self) -> float:
        """Mean length of the judged steps, in seconds."""
        return mean_step_s(self.fleet.steps.seconds, self.scene)

    def of_kind(self, kind: Kind) -> Bools:
        """Mask the rows of `spent` that are of this kind."""
        return np.asarray(self.spent.kind == CODE[kind], dtype=bool)

    def queue_after(self, rows: Bools) -> Bools:
        """Mask the rows in the queue for a CPU whose stack is that of one of these rows (mask).

        A thread that waits at that place queues each time that the wait ends.
        """
        stack = self.fleet.patterns.stack.codes[self.spent.rows]
        places = np.unique(stack[rows & (stack >= 0)])
        return np.asarray(self.of_kind(Kind.QUEUE) & np.isin(stack, places), dtype=bool)

    def seconds(self, rows: Bools) -> Floats:
        """Return each rank's seconds per step in these rows of `spent` (mask)."""
        spent = self.spent
        total = np.bincount(spent.rank[rows], spent.seconds[rows], len(self.fleet.ranks))
        return np.asarray(total, dtype=np.float64)

    def in_columns(self, entry: int) -> Ints:
        """Return the judged steps (columns) in which a pause occurs; `entry` is a row of the table of pauses."""
        before = self.fleet.steps.count - self.columns
        columns = self.fleet.pause_columns(entry) - before
        return np.asarray(columns[columns >= 0], dtype=np.int64)

    def waited(self, seconds: Floats, entries: Iterable[int] = ()) -> Floats:
        """Spread each rank's seconds of waiting per step over the judged steps, ranks x steps.

        `entries`: rows of the table of pauses that are part of these seconds.
        """
        return self._with_rest(self._events(entries), seconds)

    def ran(self, seconds: Floats, entries: Iterable[int] = ()) -> Floats:
        """Spread each rank's seconds of running per step over the judged steps, with the queueing for a CPU it brings.

        Returns ranks x judged steps. `entries`: rows of the table of pauses that are part of these seconds;
        the steps of these pauses get what each took. Without any in judged steps, those in which the rank
        runs much longer than in its median step get the seconds first (see `_longest`). The rest goes evenly
        to all steps. Queueing is added to each in proportion to running; at most the step's own time.
        """
        steps, columns = self.fleet.steps, slice(-self.columns, None)
        queued = np.nan_to_num(steps.sched_s[:, columns])
        running = np.nan_to_num(self.scene.own) - queued - np.nan_to_num((steps.io_s + steps.sync_s)[:, columns])
        events = self._events(entries)
        alone = self._with_rest(events if events.any() else self._longest(running, seconds), seconds)
        more = np.divide(queued, running, out=np.zeros_like(queued), where=running > 0)
        return np.asarray(np.fmin(alone * (1 + more), np.nan_to_num(self.scene.own)), dtype=np.float64)

    def as_counted(self, seconds: Floats, counted: Floats) -> Floats:
        """Spread seconds per step as what the kernel counts in each step, ranks x steps.

        `counted`: seconds of this and like activities by judged step; no more than that is taken.
        """
        mean = counted.mean(axis=1)
        share = np.minimum(np.divide(seconds, mean, out=np.zeros(len(mean)), where=mean > 0), 1.0)
        return np.asarray(np.fmin(share[:, None] * counted, np.nan_to_num(self.scene.own)), dtype=np.float64)

    def _events(self, entries: Iterable[int]) -> Floats:
        """Return the seconds outside collectives in the steps of these pauses, ranks x judged steps."""
        pauses, events = self.fleet.pauses, np.zeros_like(self.scene.own)
        for entry in entries:
            rank, columns = int(pauses.rank[entry]), self.in_columns(entry)
            each_s = (float(pauses.total_s[entry]) - float(pauses.wait_s[entry])) / max(int(pauses.count[entry]), 1)
            events[rank, columns] = np.fmax(events[rank, columns], max(each_s, 0.0))
        return events

    def _longest(self, running: Floats, seconds: Floats) -> Floats:
        """Give each rank's seconds to the steps in which it runs longest above its median (ranks x steps).

        Only steps longer by a quarter of a step count, the longest first; `running`: seconds, ranks x
        steps; `seconds`: per step, by rank.
        """
        longer = running - nan_median(running, 1)[:, None]
        longer = np.where(longer >= limits.LARGE_SHARE * self.scene.step_s, longer, 0.0)
        order = np.argsort(-longer, axis=1, kind="stable")
        sorted_s = np.take_along_axis(longer, order, axis=1)
        left = np.maximum(seconds[:, None] * self.columns - (np.cumsum(sorted_s, axis=1) - sorted_s), 0.0)
        events = np.zeros_like(running)
        np.put_along_axis(events, order, np.minimum(sorted_s, left), axis=1)
        return events

    def _with_rest(self, events: Floats, seconds: Floats) -> Floats:
        """Add what of each rank's seconds per step is in no event evenly to all steps; at most the step's own time."""
        rest = np.maximum(seconds * self.columns - events.sum(axis=1), 0.0) / max(self.columns, 1)
        return np.asarray(np.fmin(events + rest[:, None], np.nan_to_num(self.scene.own)), dtype=np.float64)

    def function_of(self, rows: Bools) -> Function | None:
        """Return the user's function with most of the time in these rows; None where unknown."""
        labels = self.spent.label[rows]
        total = np.bincount(labels, self.spent.seconds[rows], len(self.spent.labels))
        for label in np.argsort(-total, kind="stable").tolist():
            function: Function | None = self.spent.labels[label][1]
            if total[label] > 0 and function is not None:
                return function
        return None


def spending_of(fleet: Fleet, scene: Scene, spent: Spent | None) -> Spending | None:
    """Return the Spending of a job; None for a file of timings, and where no steps or functions were seen."""
    if spent is None or spent.of_window or fleet.timed or not scene.own.shape[1]:
        return None
    return Spending(fleet, scene, spent)
