"""The campaign of scripts/soak: windows back to back, or the service, for hours beside jobs; and a ledger of hours."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence

from campaignkit import sources
from campaignkit.campaign import Judged, Keep
from campaignkit.ledger import accounts
from campaignkit.ledger.case import OfLedger
from campaignkit.results import Result
from campaignkit.soak import judged
from campaignkit.soak.attacks import ATTACKS
from campaignkit.soak.beside import Beside
from campaignkit.soak.case import Case
from labkit.machine.shell import EXIT_NOT_PERMITTED, LabError

_CASES: dict[str, Case] = {
    one.name: one
    for one in (
        Beside("windows", "windows back to back, beside two jobs", "record", attacked=False),
        Beside("watch", "the service, beside two jobs and a hostile user", "watch", attacked=True),
        OfLedger(),
    )
}
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
        return {name: case.about for name, case in _CASES.items()}

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
        return {case: sources.of_command(_CASES[case].command, _CASES[case].files()) for case in cases}

    def run(self, left: Mapping[str, float], digests: Mapping[str, str], args: argparse.Namespace, keep: Keep) -> None:
        """Run what is left of each case."""
        if os.geteuid() != 0:
            raise LabError("observing needs root", exit_code=EXIT_NOT_PERMITTED)
        for case, done in left.items():
            _CASES[case].run(done, digests[case], args, keep)

    def table(self, found: Mapping[str, Result]) -> list[str]:
        """What was seen in each case."""
        return [line for case, row in found.items() for line in (f"{case}:", *_CASES[case].lines(row))]

    def judge(self, found: Mapping[str, Result], args: argparse.Namespace) -> Judged:
        """What is wrong in each case."""
        told = {case: _CASES[case].judge(row) for case, row in found.items()}
        wrong = tuple(f"{case}: {one}" for case, each in told.items() for one in each.problems)
        return Judged(wrong, tuple(f"{case}: {one}" for case, each in told.items() for one in each.lacking))
