"""The ledger of a job whose pauses are known, as a case of scripts/soak."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from campaignkit import sources
from campaignkit.campaign import Judged, Keep
from campaignkit.ledger import accounts, schedule
from campaignkit.ledger.run import run
from campaignkit.results import LOCAL, Result, today
from labkit.machine.shell import EXIT_USAGE, LabError

_RANKS = 4


@dataclass(frozen=True, slots=True)
class OfLedger:
    """One run, from its start to its end: it has no pieces."""

    name: str = "ledger"
    about: str = "the ledger of a job whose pauses are known"
    command: str = "watch"

    def files(self) -> Collection[Path]:
        """What makes the job, asks for its ledger and compares."""
        return [path for path in sources.kit_files("ledger") if path != Path(__file__)]

    def run(self, done: float, source: str, args: argparse.Namespace, keep: Keep) -> None:
        """Run it for all minutes. Raises LabError where these are too few."""
        if args.minutes < schedule.LEAST_MINUTES:
            words = f"{args.minutes:g} minutes are too few for a hang among other pauses"
            raise LabError(words, f"--minutes {schedule.LEAST_MINUTES:g} at least.", EXIT_USAGE)
        seen = run(args.minutes, _RANKS, LOCAL / self.name)
        series = {"cpu": [round(one, 5) for one in seen.cpu_share]}
        most = {"ranks": float(_RANKS)}
        problems = tuple(seen.problems)
        keep(
            Result(
                "soak", self.name, today(), sources.commit(), source, args.minutes, seen.sums, most, series, problems
            )
        )

    def lines(self, row: Result) -> list[str]:
        """Both accounts, and what the service took of a CPU: in most samples (tier 0 alone), and with its windows."""
        whole = row.sums.get("cpu_s", 0.0) / max(row.sums.get("seconds", 0.0), 1.0)
        windows = row.sums.get("windows", 0)
        cost = f"CPU: {row.median('cpu'):.2%} in the median of 10 s, {whole:.2%} in all, with {windows:.0f} windows"
        return [*accounts.table(row.sums), cost]

    def judge(self, row: Result) -> Judged:
        """Where both accounts differ."""
        return Judged(tuple(accounts.problems(row.sums)))
