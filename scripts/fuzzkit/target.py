"""What is fuzzed: a function that takes any bytes and may raise nothing but what it documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankscope.probes.errors import RankscopeError


@dataclass(frozen=True, slots=True)
class Target:
    """One parser, or a few that read the same source.

    `seeds` are made when they are wanted. `words`: what the format is made of; they become a dictionary for the fuzzer, and seeds in which
    each fills the whole input, as nothing else shows so surely that a parser's time grows with the square of its input.
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
        repeated = [word * (self.longest_bytes // len(word)) for word in self.words]
        return [seed[: self.longest_bytes] for seed in (*self.seeds(), *repeated)]


def chosen_by_first_byte(*parsers: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """One target of several small parsers: the first byte of the input says which one gets the rest."""

    def run(data: bytes) -> None:
        if data:
            parsers[data[0] % len(parsers)](data[1:])

    return run


def for_each(parsers: int, *seeds: bytes) -> list[bytes]:
    """Every seed for each of so many parsers."""
    return [bytes((number,)) + seed for number in range(parsers) for seed in seeds]
