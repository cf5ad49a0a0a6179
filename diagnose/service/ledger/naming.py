"""Decide what a pause is from the function that a window saw in it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankscope.diagnose.service.ledger.entry import Kind
from rankscope.diagnose.text import clean

NAME_MOST = 120
_LOADER_FILES = re.compile(r"(dataloader|data_loader|loader|dataset|_utils/fetch)\w*\.py$|/torch/utils/data/")
_LOADER = re.compile(r"^(_?next_data|_?try_get_data|_get_data|_?get_batch|next_batch|__next__|_start_workers)$")
_SAVES = re.compile(r"(?<![a-z])(save|dump|checkpoints?|ckpts?|snapshot)(?![a-z])")
_EVALUATES = re.compile(
    r"(?<![a-z])(eval|evaluat(e|ion)|valid|validat(e|ion)|test_(step|epoch|loop)|predict|inference)(?![a-z])"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class SeenPause:
    """A recurring or single pause of one rank in a window, with the function it was in.

    `at`: begin of its steps, Unix time; `seconds`: median of one; `inside`: library function that `name` calls only
    then; `waits`: the rank waits for others.
    """

    rank: int
    name: str
    file: str
    line: int
    inside: str
    at: tuple[float, ...]
    seconds: float
    waits: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of pause, by the names of its functions."""
        if self.name == "gc" and not self.file:
            return Kind.GC
        names = [_CAMEL.sub("_", one.rpartition(".")[2]).lower() for one in (self.inside, self.name)]
        for name in filter(None, names):
            if _LOADER.search(name) or _LOADER_FILES.search(self.file):
                return Kind.LOADER
            if _SAVES.search(name):
                return Kind.CHECKPOINT
            if _EVALUATES.search(name):
                return Kind.EVALUATION
        return Kind.PAUSE

    @property
    def what(self) -> str:
        """The function in words: `save (train.py:12)`, `main (train.py:3), in its call of step`."""
        if self.kind is Kind.GC:
            return "garbage collection"
        where = f" ({self.file.rpartition('/')[2]}:{self.line})" if self.file else ""
        inside = f", in its call of {self.inside}" if self.inside else ""
        return clean(f"{self.name}{where}{inside}", NAME_MOST)
