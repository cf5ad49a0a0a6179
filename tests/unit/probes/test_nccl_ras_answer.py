"""The answers of NCCL RAS, in the words of its source, are read right; anything else never does worse than be refused."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pace import pace_s

from rankscope.probes.nccl import ras as nccl_ras
from rankscope.probes.nccl.ras_answer import Laggard, Missing, NotRas, Place, RasAnswer, laggards, parse

TEXT = """NCCL version 2.27.7+cuda12.9 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.08s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  INCOMPLETE,MISMATCH

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========

TIMEOUT
  Encountered 3 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 2 has status ABORT -- GPU 2 managed by process 98211 on node 172.16.64.210
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation 36
  Rank 7 has launched up to operation 35 -- GPU 0 (NVML 7) managed by process 98217 on node 172.16.64.210
  Rank 9 has not launched any operations -- [process information not found]
  Communicator ranks have different AllGather operation counts
  28 ranks have launched up to operation 11
  3 ranks have launched up to operation 10
  Rank 1 -- GPU 1 managed by process 98211 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 98213 on node 172.16.64.210
  Rank 5 -- [process information not found]

"""


def rank(number: int, **counts: int) -> dict[str, Any]:
    running = {
        "init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False,
    }  # fmt: skip
    return {
        "rank": number, "host": f"10.0.0.{number // 4}", "pid": 9001 + number, "cuda_dev": 0, "nvml_dev": number % 4,
        "status": running, "collective_counts": {"Broadcast": 0, "AllReduce": 0, **counts},
    }  # fmt: skip


def job(*ranks: dict[str, Any], missing: list[dict[str, Any]] | None = None) -> bytes:
    """What rasDumpCommsToJSON writes."""
    communicator = {
        "hash": "0xcf264af53edbe986", "secondary_hash": "0x1:0x2", "size": 8, "ranks_count": len(ranks),
        "missing_ranks_count": len(missing or ()), "ranks": ranks, "missing_ranks": missing or [],
    }  # fmt: skip
    document = {
        "nccl_version": "2.28.9+cuda13.0", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-05-05 06:16:47", "communicators_count": 1, "communicators": [communicator],
        "ras": {"collection_time_sec": 0.082, "timeouts_count": 2},
    }  # fmt: skip
    return json.dumps(document, indent=2).encode()


def test_a_comma_that_nccl_forgets_beside_a_rank_that_does_not_answer_is_put_in() -> None:
    """2.28.7 to 2.28.9: jsonWriteMissingRank, as a job on an H100 said it with one rank stopped."""
    place = {"rank": 1, "host": "127.0.0.1", "pid": 1096, "cuda_dev": 0, "nvml_dev": 0}
    said = job(
        {"rank": 0, "pid": 1095}, missing=[{**place, "status": {"unresponsive": True, "considered_dead": False}}]
    )
    broken = said.replace(b'"nvml_dev": 0,\n', b'"nvml_dev": 0\n')
    assert broken != said
    (communicator,) = parse(broken).communicators
    assert communicator.missing == (Missing(Place(1, "127.0.0.1", 1096, 0, 0), unresponsive=True, dead=False),)


def test_the_text_names_who_is_behind() -> None:
    answer = parse(TEXT.encode())
    assert (answer.version, answer.whole, answer.timeouts) == ("2.27.7+cuda12.9", False, 3)
    assert answer.dead == (Place(-1, "172.16.64.213", 3487984, -1, -1),)
    (communicator,) = answer.communicators
    assert communicator.identity == "0xcf264af53edbe986"
    assert [(m.place.rank, m.place.pid, m.unresponsive) for m in communicator.missing] == [(21, 3487984, True)]
    assert communicator.troubled == ((Place(2, "172.16.64.210", 98211, 2, 2), "abort"),)
    counts = [
        (group.operation, group.count, group.size, [p.rank for p in group.who]) for group in communicator.launched
    ]
    assert counts == [
        ("AllGather", 11, 28, []), ("AllGather", 10, 3, [1, 3, 5]),
        ("AllReduce", 36, 29, []), ("AllReduce", 35, 1, [7]), ("AllReduce", 0, 1, [9]),
    ]  # fmt: skip
    assert [place for group in communicator.behind() for place in group.who][3] == Place(
        7, "172.16.64.210", 98217, 0, 7
    )
    assert Place(5, "", -1, -1, -1) in communicator.launched[1].who


def test_the_first_release_with_ras_counts_all_collectives_together() -> None:
    text = TEXT.replace("different AllReduce operation", "different collective operation").encode()
    assert "collective" in {group.operation for group in parse(text).communicators[0].launched}


def test_json_holds_every_rank() -> None:
    failed = rank(3, AllReduce=36)
    failed["status"]["async_error"] = 6
    gone = {**rank(5), "status": {"unresponsive": True, "considered_dead": True}}
    answer = parse(job(*(rank(n, AllReduce=37) for n in (0, 1, 2)), failed, missing=[gone]))
    assert (answer.version, answer.whole, answer.timeouts) == ("2.28.9+cuda13.0", True, 2)
    (communicator,) = answer.communicators
    assert (communicator.identity, communicator.size) == ("0xcf264af53edbe986", 8)
    assert [(place.rank, place.host, place.pid, place.nvml) for place in communicator.ranks[:2]] == [
        (0, "10.0.0.0", 9001, 0), (1, "10.0.0.0", 9002, 1),
    ]  # fmt: skip
    assert [(group.operation, group.count, group.size) for group in communicator.launched] == [
        ("AllReduce", 37, 3), ("AllReduce", 36, 1),
    ]  # fmt: skip
    assert [(place.rank, word) for place, word in communicator.troubled] == [(3, "async_error 6")]
    assert [(m.place.rank, m.unresponsive, m.dead) for m in communicator.missing] == [(5, True, True)]


def test_a_laggard_is_behind_twice_while_nobody_moves() -> None:
    waiting = job(*(rank(n, AllReduce=37) for n in range(7)), rank(7, AllReduce=36))
    moved = job(*(rank(n, AllReduce=41) for n in range(7)), rank(7, AllReduce=40))
    first, second = parse(waiting), parse(moved)
    assert laggards(first, second) == ()
    assert laggards(first, parse(waiting)) == (
        Laggard("0xcf264af53edbe986", Place(7, "10.0.0.1", 9008, 0, 3), "AllReduce", 36, 37),
    )


def test_the_laggards_are_those_behind_even_where_they_are_the_most() -> None:
    waiting = parse(job(rank(0, AllReduce=37), *(rank(n, AllReduce=36) for n in range(1, 8))))
    assert [laggard.place.rank for laggard in laggards(waiting, waiting)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{", b"[]", b"{}", b'{"communicators": 7}', b"[" * 100_000,
        b'{"communicators": ' + b"[" * 100_000, b'{"n": ' + b"9" * 10_000 + b"}", bytes(range(256)),
    ],
)  # fmt: skip
def test_what_is_not_ras_is_refused(answer: bytes) -> None:
    with pytest.raises(NotRas):
        parse(answer)


MANY = 200_000
READ_PACES = 60  # 10 to 18 are taken
HEAD = (
    "NCCL version 2.27.7\n#0-0 (cf264af53edbe986) {}\n  Communicator ranks have different AllReduce operation counts\n"
)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("MISMATCH", "  Rank {} has launched up to operation {} -- x\n"),
        ("MISMATCH", "  {} ranks have launched up to operation {}\n"),
        ("MISMATCH", "  Rank {} has status ABORT {} -- x\n"),
        ("INCOMPLETE", "  Rank {} -- {}\n"),
    ],
    ids=["counts", "groups", "troubled", "missing"],
)
def test_a_long_answer_takes_no_more_time_than_its_length_allows(kind: str, line: str) -> None:
    """Whoever owns a job can serve one. Each line used to copy all lines before it: minutes."""
    text = HEAD.format(kind) + "".join(line.format(number, number) for number in range(MANY))
    most_s, began = READ_PACES * pace_s(), time.process_time()
    answer = parse(text.encode())
    (one,) = answer.communicators
    assert len(one.launched) + len(one.missing) + len(one.troubled) == MANY
    laggards(answer, answer)
    assert time.process_time() - began < most_s


@pytest.mark.parametrize("part", [b"{},", b"[],", b'"",'])
def test_an_answer_of_tiny_parts_takes_no_memory(part: bytes) -> None:
    """Each takes twenty times in memory what it takes in the answer."""
    with pytest.raises(NotRas, match="absurdly many"):
        parse(b'{"communicators": [' + part * (8 << 20) + b"{}]}")


def test_lines_without_end_are_cut() -> None:
    assert parse(b"NCCL version 2.27.7\n" + b"\n" * (8 << 20)).communicators == ()


def test_ranks_of_one_long_group_are_read_as_fast() -> None:
    text = HEAD.format("MISMATCH") + "  3 ranks have launched up to operation 7\n"
    text += "".join(f"  Rank {number} -- GPU 1 managed by process {number} on node b\n" for number in range(MANY))
    most_s, began = READ_PACES * pace_s(), time.process_time()
    (group,) = parse(text.encode()).communicators[0].launched
    assert [place.rank for place in group.who] == list(range(MANY))
    assert time.process_time() - began < most_s


LINES = [*TEXT.splitlines(keepends=True), "", "\0\n", "#0-0 (0) MISMATCH\n", "  Rank 999999999 -- GPU 1\n"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(
        st.sampled_from(["communicators", "ranks", "rank", "pid", "status", "collective_counts", "missing_ranks", "hash", "x"]),
        inner,
    ),
    max_leaves=40,
)  # fmt: skip


def check(answer: RasAnswer) -> None:
    for communicator in answer.communicators:
        assert communicator.identity.isprintable()
        for group in communicator.launched:
            assert all(place.host.isprintable() and len(place.host) <= 80 for place in group.who)
    assert laggards(answer, answer) == laggards(answer, answer)


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=60)))
def test_any_lines_in_any_order_are_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(NotRas):
        check(parse(("NCCL version 2.27.7\n" + "".join(lines)).encode("utf-8", "surrogatepass")))


@given(st.dictionaries(st.just("communicators"), st.lists(VALUES), min_size=1))
def test_any_json_is_read_or_refused(document: dict[str, Any]) -> None:
    with contextlib.suppress(NotRas):
        check(parse(json.dumps(document).encode()))


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_a_damaged_answer_is_read_or_refused(garbage: bytes, at: int) -> None:
    for whole in (TEXT.encode(), job(*(rank(n, AllReduce=3) for n in range(3)))):
        with contextlib.suppress(NotRas):
            check(parse(whole[:at] + garbage + whole[at + len(garbage) :]))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (28028, ("127.0.0.1", "::1"))),
        ({"NCCL_RAS_ADDR": "localhost:4099"}, (4099, ("127.0.0.1", "::1"))),
        ({"NCCL_RAS_ADDR": "127.0.0.7:4099"}, (4099, ("127.0.0.7",))),
        ({"NCCL_RAS_ADDR": "[::1]:4099"}, (4099, ("::1",))),
    ],
)
def test_the_environment_says_where_ras_listens(environment: dict[str, str], expected: object) -> None:
    assert nccl_ras.listening(environment) == expected


@pytest.mark.parametrize(
    "address", ["10.0.0.7:28028", "evil.example:80", "127.0.0.1", "127.0.0.1:0", "[::]:1", ":", "\x1b[2J:1"]
)
def test_no_target_sends_us_elsewhere(address: str) -> None:
    with pytest.raises(ValueError):
        nccl_ras.listening({"NCCL_RAS_ADDR": address})
    with pytest.raises(ValueError, match="switched off"):
        nccl_ras.listening({"NCCL_RAS_ENABLE": "0"})
