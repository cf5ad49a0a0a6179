"""The campaign of scripts/soak: windows back to back, or the service, for hours beside a job of eight ranks."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from campaignkit import sources
from campaignkit.campaign import Judged, Keep
from campaignkit.ledger import accounts, schedule
from campaignkit.ledger.run import run as run_ledger
from campaignkit.results import LOCAL, Result
from campaignkit.soak import judged, run
from campaignkit.soak.attacks import ATTACKS
from campaignkit.soak.figures import Sample, samples_of, series_of
from labkit.machine.shell import EXIT_NOT_PERMITTED, EXIT_USAGE, LabError

_COMMANDS = {"windows": "record", "watch": "watch", "ledger": "watch"}
_KEPT_S = 300.0
_LEDGER_RANKS = 4
EXIT_TOO_LITTLE = 3


class Soak:
    """Three cases; `count` is how many minutes were seen."""

    name = "soak"
    lacking_code = EXIT_TOO_LITTLE
    epilog = f"""Beside a job of eight ranks, one of which starts short-lived processes all the time, and a second job that is started again
every 45 s, as root. By default windows are observed back to back: in one process that lives as long as the soak, every fourth by a
command of its own; after four of them comes a pause as long as one. With --watch it is the service, and an unprivileged user attacks
({", ".join(ATTACKS)}); every 10 s it is looked how long the longest fork of the host took, what the service holds and costs, and how long
the job's steps are; the first and last minutes of a piece are without it. Good is: memory and descriptors flat, steps at most
{judged.SLOWER:.0%} longer in the median and {judged.SLOWER_IN_MEAN:.0%} in the mean, no fork above {judged.MOST_FORK_S:g} s, no rank ended.
A soak may be made in pieces: --piece 50, three times. Ends with 3 where too little was seen to say so.
With --ledger a job of four ranks pauses at known times: a garbage collection on each rank in turn, checkpoints, late loaders, a hang; a
rank of it is killed and it is started again. Good is: its ledger has all of them with counts and hours within {accounts.NEAR:.0%}.
"""

    def cases(self) -> Mapping[str, str]:
        """All."""
        return {
            "windows": "windows back to back, beside two jobs",
            "watch": "the service, beside two jobs and a hostile user",
            "ledger": "the ledger of a job whose pauses are known",
        }

    def options(self, parser: argparse.ArgumentParser) -> None:
        """How long, and beside what."""
        parser.add_argument(
            "--watch", dest="only", action="store_const", const=["watch"], help="the service: as --only watch"
        )
        parser.add_argument(
            "--ledger", dest="only", action="store_const", const=["ledger"], help="the ledger: as --only ledger"
        )
        parser.add_argument("--minutes", type=float, default=120.0, help="of all pieces together (default 120)")
        parser.add_argument(
            "--piece",
            "--part",
            type=float,
            default=math.inf,
            metavar="MINUTES",
            help="no more of these now (default all that is left)",
        )
        parser.add_argument("--window", type=float, default=10.0, help="seconds (default 10)")
        parser.add_argument("--ranks", type=int, default=8, help="of the job (default 8)")
        parser.add_argument("--forks", type=int, default=20, help="processes a second that a rank starts (default 20)")
        parser.add_argument(
            "--attacks",
            nargs="*",
            choices=[*ATTACKS],
            default=[*ATTACKS],
            help="of the other user, with --watch (default all)",
        )

    def wanted(self, args: argparse.Namespace) -> float:
        """Minutes of each case."""
        return 0.99 * float(args.minutes)  # a piece ends with a whole sample

    def sources(self, cases: Sequence[str]) -> Mapping[str, str]:
        """Digest of what observes, and of what makes the jobs and looks at them."""
        own = {*sources.kit_files("soak/programs"), *sources.kit_files("chaos/programs")}
        own |= {path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__)}
        ledger = set(sources.kit_files("ledger"))
        return {case: sources.of_command(_COMMANDS[case], ledger if case == "ledger" else own) for case in cases}

    def run(self, left: Mapping[str, float], digests: Mapping[str, str], args: argparse.Namespace, keep: Keep) -> None:
        """Another piece of each case that is not done; what was seen is kept every five minutes."""
        if os.geteuid() != 0:
            raise LabError("observing needs root", exit_code=EXIT_NOT_PERMITTED)
        for case, done in left.items():
            if case == "ledger":
                keep(_of_ledger(digests[case], args.minutes))
                continue
            minutes = min(args.minutes - done, args.piece)
            settings = run.Settings(args.ranks, args.forks, args.window, list(args.attacks) if case == "watch" else [])
            with run.piece(settings) as piece:
                keeping = _Keeping(case, digests[case], piece, keep)
                try:
                    (run.watch if case == "watch" else run.windows)(
                        piece, time.monotonic() + minutes * 60, keeping.now_and_then
                    )
                except LabError as error:
                    piece.problems.append(str(error))
                    raise
                finally:
                    keeping.now()

    def table(self, found: Mapping[str, Result]) -> list[str]:
        """A line for each ten minutes, then what counts."""
        lines = []
        for case, row in found.items():
            if case == "ledger":
                lines += [f"{case}:", *accounts.table(row.sums), _cost(row)]
                continue
            lines += [f"{case}:", *judged.table(case, samples_of(row.series), int(row.most.get("ranks", 1)))]
        return lines

    def judge(self, found: Mapping[str, Result], args: argparse.Namespace) -> Judged:
        """Growth, forks and steps over all pieces of a case."""
        wrong, lacking = [], []
        for case, row in found.items():
            if case == "ledger":
                wrong += [f"{case}: {one}" for one in accounts.problems(row.sums)]
                continue
            samples = samples_of(row.series)
            wrong += [f"{case}: {one}" for one in judged.problems(case, samples, row.sums)]
            lacking += [f"{case}: {one}" for one in judged.too_little(case, samples)]
        return Judged(tuple(wrong), tuple(lacking))


def _of_ledger(source: str, minutes: float) -> Result:
    """A run of the ledger's job, as a row."""
    if minutes < schedule.LEAST_MINUTES:
        words = f"{minutes:g} minutes are too few for a hang among other pauses"
        raise LabError(words, f"--minutes {schedule.LEAST_MINUTES:g} at least.", EXIT_USAGE)
    seen = run_ledger(minutes, _LEDGER_RANKS, LOCAL / "ledger")
    day = time.strftime("%Y-%m-%d", time.gmtime())
    series = {"cpu": [round(one, 5) for one in seen.cpu_share]}
    most = {"ranks": float(_LEDGER_RANKS)}
    return Result(
        "soak", "ledger", day, sources.commit(), source, minutes, seen.sums, most, series, tuple(seen.problems)
    )


def _cost(row: Result) -> str:
    """What the service took of a CPU: in most samples, which are of tier 0 alone, and with the windows it recorded."""
    whole = row.sums.get("cpu_s", 0.0) / max(row.sums.get("seconds", 0.0), 1.0)
    return f"CPU: {row.median('cpu'):.2%} in the median of 10 s, {whole:.2%} in all, with {row.sums.get('windows', 0):.0f} windows"


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
        day = time.strftime("%Y-%m-%d", time.gmtime())
        most = {"ranks": self._piece.settings.ranks}
        if more:
            self._keep(
                Result(
                    "soak",
                    self._case,
                    day,
                    self._commit,
                    self._source,
                    minutes,
                    sums,
                    most,
                    series_of(more),
                    tuple(self._piece.problems),
                )
            )
        self._kept, self._kept_s, self._sums = len(self._piece.samples), time.monotonic(), dict(self._piece.sums)
