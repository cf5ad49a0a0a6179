"""A rank as the census finds it, of a job of two."""

from __future__ import annotations

from rankscope.observer.census.candidates import Libraries
from rankscope.observer.census.containers import Container
from rankscope.observer.census.found import FoundRank, Worker
from rankscope.observer.census.identity import RankIdentity

LIBRARIES = Libraries("torch", "/a/libtorch.so", "", "", "", "", "", "", "", "3.11")
IDENTITY = RankIdentity(
    "job", 1, 1, 2, 2, "trainer", "host", "node", "", 7, 7, 4026531840, ("10.0.0.1",), (), (), "0-1", "3.11", "python x", "x"
)  # fmt: skip
RANK = FoundRank(
    IDENTITY, 7, 70, 0.7, (Worker(8, "loader", "pt_data_worker"),), LIBRARIES, Container("docker", "abc", "pod"), "/a", "torchrun", False, 0
)  # fmt: skip
