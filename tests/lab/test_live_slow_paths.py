"""A rank on a slow path of its own is compared with its peers, live."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from labsupport import RunningJob, rankscope


@pytest.mark.apart  # jobs that take its CPUs hide who is late
def test_a_rank_that_does_what_its_peers_never_do_is_named(torchrun: Callable[..., RunningJob]) -> None:
    # GIVEN a job of three ranks, one of which falls back to a slow way that none of the others takes
    job = torchrun(ranks=3, script=Path(__file__).with_name("fallback_job.py"))

    # WHEN it is diagnosed
    done = rankscope("diagnose", "--no-history", "--json", "--window", "8", "--at-most", "8", "--job", job.name)

    # THEN that rank and its function are the first suspect
    verdict = json.loads(done.stdout)
    assert (verdict["status"], done.returncode) == ("fault", 1), done.stdout
    first = verdict["suspects"][0]
    assert (first["cause"], first["ranks"]) == ("slow-function", [1]), first
    assert first["function"]["name"] == "portable_unpack", first
