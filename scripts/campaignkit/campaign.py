"""The contract of a campaign: which cases it has, what each rests on, how it is run and judged."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from campaignkit.results import Result

Keep = Callable[[Result], None]  # add a row to the file of results


@dataclass(frozen=True, slots=True)
class Judged:
    """What is wrong with the results of a campaign, and what there is too little of to say so."""

    problems: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


class Campaign(Protocol):
    """One campaign. `lacking_code`: exit code of a run that has seen too little to judge; 0 where it may go on another day."""

    name: str
    epilog: str
    lacking_code: int

    def cases(self) -> Mapping[str, str]:
        """All cases by name, with what each is."""
        ...

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that only this campaign has."""
        ...

    def sources(self, cases: Sequence[str]) -> Mapping[str, str]:
        """Digest of the sources that each case rests on."""
        ...

    def run(self, left: Mapping[str, float], sources: Mapping[str, str], args: argparse.Namespace, keep: Keep) -> None:
        """Run cases, each with how much of it is done already, and keep their results."""
        ...

    def wanted(self, args: argparse.Namespace) -> float:
        """How much of each case is enough: inputs, runs or minutes."""
        ...

    def table(self, found: Mapping[str, Result]) -> list[str]:
        """One line per case."""
        ...

    def judge(self, found: Mapping[str, Result], args: argparse.Namespace) -> Judged:
        """What the results of all cases come to together, beside the problems in each."""
        ...
