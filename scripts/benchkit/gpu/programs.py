"""The trainings whose faults can be switched on, and what is the right answer to each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.faults.base import Truth


@dataclass(frozen=True, slots=True)
class Case:
    """`kind`: as the job takes it, or one of those done from outside. `share`: of the healthy step, for how long."""

    kind: str
    truth: Truth
    rank: int = -1
    share: float = 0.0


def _truth(rank: int, function: str | None = None, others: tuple[Truth, ...] = (), **causes: str | set[str]) -> Truth:
    """`causes`: component → the right name, or names; `others`: what is right as well."""
    named = {component: frozenset({names} if isinstance(names, str) else names) for component, names in causes.items()}
    return Truth("fault", named, (rank,), function=function, exact=True, alternatives=others)


def _slow(
    kind: str, rank: int, share: float, function: str | None, *others: Truth, python: str | set[str]
) -> Case:  # fmt: skip
    return Case(kind, _truth(rank, function, others, python=python), rank, share)


def _held(kind: str, rank: int, **causes: str | set[str]) -> Case:
    return Case(kind, replace(_truth(rank, None, (), **causes), status="hang"), rank, 1.0)


def _cases_of_frames(seed: int, ranks: int) -> tuple[Case, ...]:
    rng = random.Random(seed)
    who = [rng.randrange(ranks) for _ in range(7)]
    share = [rng.uniform(0.3, 0.7) for _ in range(4)]
    return (
        Case("healthy", Truth("healthy", {})),
        _slow("python", who[0], share[0], "crop_frames", python="slow-function"),
        _slow("loader", who[1], share[1], "read_shard", python="blocking-call"),
        # A rank with kernels of its own that it waits for is a function that blocks, on a GPU that works.
        _slow("kernel", who[2], share[2], "extra_products", python="blocking-call"),
        _slow("upload", who[3], share[3], "upload_volume", python="blocking-call"),
        Case(
            "stranger",
            Truth("fault", {"gpu": frozenset({"contended"})}, tuple(range(ranks)), everyone=True, exact=True),
        ),
        _held("stopped", who[4], process="stopped"),
        _held("stuck", who[5], process={"deadlock", "missing-collective"}, python="lock"),
        _held("exited", who[6], process="exited"),
    )


def _cases_of_documents(seed: int, ranks: int) -> tuple[Case, ...]:
    rng = random.Random(seed)
    who = [rng.randrange(ranks) for _ in range(8)]
    share = [rng.uniform(0.3, 0.7) for _ in range(6)]
    who += [rng.randrange(ranks) for _ in range(3)]  # kinds that came later leave those of a seed as they were
    share += [rng.uniform(0.3, 0.7) for _ in range(3)]

    def own(kind: str, rank: int, share: float, function: str, *others: Truth) -> Case:
        return _slow(kind, rank, share, function, *others, python={"slow-function", "blocking-call"})

    return (
        Case("healthy", Truth("healthy", {})),
        # Two workers make the two batches of a step side by side: what each takes is what the step takes.
        own("reader", who[0], 1 + share[0], "read_document", _truth(who[0], python="dataloader")),
        own("decode", who[8], 1 + share[6], "decode_document", _truth(who[8], python="dataloader")),
        own("masks", who[1], share[1], "mask_spans"),
        own("metrics", who[2], share[2], "log_metrics"),
        own("memory", who[3], share[3], "release_memory"),
        own("index", who[4], 2 * share[4], "refresh_index", _truth(who[4], python="gil")),
        own("collect", who[9], share[7], "tidy_up", _truth(who[9], python="gc")),
        # Held from the end of a step until the next one has ended and some more.
        _slow("lock", who[10], 1 + share[8], None, python={"lock", "blocking-call"}),
        own("snapshot", who[5], share[5], "save_snapshot", _truth(who[5], storage="slow-write")),
        Case("longer", Truth("imbalance", {"workload": frozenset({"data-imbalance"})}, (who[6],)), who[6], 1.0),
        _held("word", who[7], process={"deadlock", "missing-collective"}, python={"blocking-call", "lock"}),
    )


@dataclass(frozen=True, slots=True)
class Program:
    """A training whose faults can be switched on. `batch`: of a rank, on a GPU and without one.

    `cases(seed, ranks)`: those after which the job does not go on are the last; seed: whom they hit, and how hard.
    """

    script: str
    batch: tuple[str, str]
    cases: Callable[[int, int], tuple[Case, ...]]


PROGRAMS = {
    "frames": Program("faulty_job.py", ("2048", "32"), _cases_of_frames),
    "documents": Program("sharded_job.py", ("16", "4"), _cases_of_documents),
}
