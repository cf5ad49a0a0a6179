"""Windows back to back, or the service: hours beside a job of eight ranks and one that comes and goes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from campaignkit import sources
from campaignkit.campaign import Judged, Keep
from campaignkit.results import Result, today
from campaignkit.soak import judged, run
from campaignkit.soak.figures import Sample, samples_of, series_of
from labkit.machine.shell import LabError

_KEPT_S = 300.0
_NOT_SEEN = ("campaign.py", "case.py", "beside.py")


@dataclass(frozen=True, slots=True)
class Beside:
    """`attacked`: it is the service, beside a hostile user as well."""

    name: str
    about: str
    command: str
    attacked: bool

    def files(self) -> Collection[Path]:
        """What makes the jobs and looks at them; not the command's own options, nor what keeps the results."""
        programs = {*sources.kit_files("soak/programs"), *sources.kit_files("chaos/programs")}
        own = {path for path in Path(__file__).parent.glob("*.py") if path.name not in _NOT_SEEN}
        return programs | own

    def run(self, done: float, source: str, args: argparse.Namespace, keep: Keep) -> None:
        """Another piece; what was seen is kept every five minutes."""
        minutes = min(args.minutes - done, args.piece)
        settings = run.Settings(args.ranks, args.forks, args.window, list(args.attacks) if self.attacked else [])
        with run.piece(settings) as piece:
            keeping = _Keeping(self.name, source, piece, keep)
            try:
                (run.watch if self.attacked else run.windows)(
                    piece, time.monotonic() + minutes * 60, keeping.now_and_then
                )
            except LabError as error:
                piece.problems.append(str(error))
                raise
            finally:
                keeping.now()

    def lines(self, row: Result) -> list[str]:
        """A line for each ten minutes, then what counts."""
        return judged.table(self.name, samples_of(row.series), int(row.most.get("ranks", 1)))

    def judge(self, row: Result) -> Judged:
        """Growth, forks and steps over all pieces."""
        samples = samples_of(row.series)
        return Judged(
            tuple(judged.problems(self.name, samples, row.sums)), tuple(judged.too_little(self.name, samples))
        )


class _Keeping:
    """What a piece has seen since the last time goes into the results."""

    def __init__(self, case: str, source: str, piece: run.Piece, keep: Keep) -> None:
        self._case, self._source, self._piece, self._keep = case, source, piece, keep
        self._kept, self._kept_s, self._sums, self._commit = 0, time.monotonic(), dict[str, float](), sources.commit()

    def now_and_then(self) -> None:
        if time.monotonic() - self._kept_s >= _KEPT_S:
            self.now()

    def now(self) -> None:
        more: list[Sample] = self._piece.samples[self._kept :]
        sums = {name: value - self._sums.get(name, 0) for name, value in self._piece.sums.items()}
        minutes = round(sum(one.seconds for one in more) / 60, 3)
        day = today()
        most = {"ranks": float(self._piece.settings.ranks)}
        if more:
            problems = tuple(self._piece.problems)
            series = series_of(more)
            self._keep(
                Result("soak", self._case, day, self._commit, self._source, minutes, sums, most, series, problems)
            )
        self._kept, self._kept_s, self._sums = len(self._piece.samples), time.monotonic(), dict(self._piece.sums)
