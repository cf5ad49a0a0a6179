"""The job's own times of a step, for loops whose parts come several times in a step, or one inside the other."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator

from job import STEP_COLUMNS, Recorder

PARTS = STEP_COLUMNS[STEP_COLUMNS.index("load") : STEP_COLUMNS.index("cpu")]
_REST = "metrics"


class Stopwatch:
    """Seconds of a step by part; what belongs to no part goes to the metrics.

    Whatever waits for other ranks belongs to `backward`, wherever it is: the other parts are the rank's own.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.begin()

    def begin(self) -> None:
        self._began = self._since = time.monotonic()
        self._cpu = time.process_time()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part = _REST

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self._part
        self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)

    def end(self, step: int) -> None:
        """Write the step down."""
        self._turn_to(_REST)
        marks = itertools.accumulate(self._seconds.values(), initial=self._began)
        self._recorder.write(step, list(marks), time.process_time() - self._cpu)

    def _turn_to(self, part: str) -> None:
        now = time.monotonic()
        self._seconds[self._part] += now - self._since
        self._since, self._part = now, part
