"""The table of kinds: which program, how it is started, and the right answer. No program holds code or words of a report."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.faults.base import Truth

_ONE_RECOMPILES = Truth("fault", {"python": frozenset({"recompile", "slow-function"})}, ranks=(2,), exact=True)


def _waste(components: str, causes: frozenset[str], ranks: int) -> Truth:
    return Truth(
        "inefficient", dict.fromkeys(components.split(), causes), ranks=tuple(range(ranks)), everyone=True, exact=True
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """`word`: the fourth argument of the program. truth: of the variant at fault. priced: whether its price can be told by the job's
    own steps, healthy and at fault (a job whose steps become longer all the time has no one price). report: what it is a kind of."""

    name: str
    program: str
    word: str
    ranks: int
    truth: Truth
    report: str
    priced: bool = True


def _kind(
    name: str, program: str, word: str, ranks: int, components: str, causes: str, report: str, priced: bool = True
) -> Kind:
    return Kind(name, program, word, ranks, _waste(components, frozenset(causes.split()), ranks), report, priced)


KINDS = {
    one.name: one
    for one in (
        Kind("one-recompiles", "shapes", "one", 3, _ONE_RECOMPILES, "one rank meets a new shape in each step"),
        _kind("all-recompile", "shapes", "all", 2, "python", "recompile", "every rank compiles for each new length"),
        _kind("gc-in-turn", "garbage", "in-turn", 2, "python", "gc", "full collections, on each rank in another step"),
        _kind("gc-at-once", "garbage", "at-once", 2, "python", "gc", "the script collects every few steps"),
        _kind("workers-reborn", "loader", "reborn", 2, "python", "dataloader pause", "workers start anew in each epoch"),
        _kind("few-workers", "loader", "few", 2, "python", "dataloader", "one worker for what takes two"),
        _kind("baggage", "loader", "baggage", 2, "python", "dataloader gc", "each sample brings metadata along"),
        _kind("pinned", "dense", "pinned", 2, "cpu", "affinity", "all ranks inherit the mask of one CPU"),
        _kind("threads", "dense", "threads", 2, "cpu", "oversubscribed", "more threads of a pool than CPUs"),
        _kind("anew", "dense", "anew", 2, "memory", "page-faults", "the allocator gives memory back in each step"),
        _kind("saves", "dense", "saves", 2, "storage python", "slow-write pause", "a checkpoint every few steps"),
        _kind("rotates", "dense", "rotates", 2, "python", "pause", "each rank packs its log in steps of its own", priced=False),
        _kind("prints", "dense", "prints", 2, "storage", "slow-write", "synchronous writes of metrics in each step"),
        _kind("grows", "dense", "grows", 2, "python", "slow-function", "work that grows with the number of steps", priced=False),
        _kind("alone-gc", "garbage", "at-once", 1, "python", "gc", "the same in one process"),
        _kind("alone-workers", "loader", "few", 1, "python", "dataloader", "the same in one process"),
        _kind("alone-bound", "loader", "bound", 1, "cpu", "affinity", "the rank and its worker inherit the mask of one CPU"),
        _kind("alone-recompiles", "shapes", "all", 1, "python", "recompile", "the same in one process"),
        _kind("alone-prints", "dense", "prints", 1, "storage", "slow-write", "the same in one process"),
        Kind("evaluates", "dense", "evaluates", 2, Truth("healthy", {}), "an evaluation now and then is no waste", priced=False),
    )
}  # fmt: skip
