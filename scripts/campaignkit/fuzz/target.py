"""What is fuzzed: a function that takes any bytes and may raise nothing but what it documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from rankscope.probes.base.errors import RankscopeError


@dataclass(frozen=True, slots=True)
class Target:
    """One parser, or a few that read the same source.

    `seeds` are made when they are wanted. `words`: what the format is made of; they become a dictionary for the fuzzer, and inputs of
    `longest_bytes` that each fills, as nothing else shows so surely that a parser's time grows with the square of its input. What the
    fuzzer changes need be no longer than the longest seed: a million of those take minutes in place of hours.
    """

    name: str
    what: str
    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    raises: tuple[type[Exception], ...] = (RankscopeError,)
    words: tuple[bytes, ...] = ()
    longest_bytes: int = 4096

    def all_seeds(self) -> list[bytes]:
        """Seeds and words, repeated; none longer than an input may be."""
        return [seed[: self.longest_bytes] for seed in (*self.seeds(), *self.repeated(self.longest_bytes))]

    def repeated(self, size: int) -> list[bytes]:
        """Each word as often as it fits."""
        return [word * max(size // len(word), 1) for word in self.words]


_SHORTEST = 1024  # of what is changed


def changed_bytes(seeds: Sequence[bytes], longest_bytes: int) -> int:
    """How long an input may be that is made of seeds."""
    return min(max([_SHORTEST, *map(len, seeds)]), longest_bytes)


@contextmanager
def swapped(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Something of a module is another one meanwhile. unittest.mock does this as well, and takes longer than most parsers."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def chosen_by_first_byte(*parsers: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """One target of several small parsers: the first byte of the input says which one gets the rest."""

    def run(data: bytes) -> None:
        if data:
            parsers[data[0] % len(parsers)](data[1:])

    return run


def for_each(parsers: int, *seeds: bytes) -> list[bytes]:
    """Every seed for each of so many parsers."""
    return [bytes((number,)) + seed for number in range(parsers) for seed in seeds]
