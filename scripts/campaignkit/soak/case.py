"""The contract of a case of the soak: what it rests on, how it is run, what its row comes to."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from campaignkit.campaign import Judged, Keep
from campaignkit.results import Result


class Case(Protocol):
    """One case. `about`: what it is, in words; `command`: of the product, that it rests on."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def command(self) -> str: ...

    def files(self) -> Collection[Path]:
        """Files of this kit that it rests on."""
        ...

    def run(self, done: float, source: str, args: argparse.Namespace, keep: Keep) -> None:
        """Run what is left, and keep what was seen. `done`: minutes; `source`: digest of what it rests on."""
        ...

    def lines(self, row: Result) -> list[str]:
        """What was seen, as lines of the table."""
        ...

    def judge(self, row: Result) -> Judged:
        """What is wrong with it."""
        ...
