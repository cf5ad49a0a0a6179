"""Servers that ranks ask: they are found, and their requests are told apart by byte counters."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer.serving.exchanges import Exchange, exchanges_of, union_s
from rankscope.observer.serving.found import Server, find_servers
from rankscope.observer.serving.rows import asked_in_steps, server_rows
from rankscope.observer.serving.watch import Asked, ServerWatch
from rankscope.probes.network.talks import TalkSample

ANSWERS = """
import socket, sys, time
listens = socket.create_server(("127.0.0.1", 0))
print(listens.getsockname()[1], flush=True)
one, _ = listens.accept()
while data := one.recv(1 << 20):
    if b"ask" in data:
        time.sleep(0.2)
        one.sendall(b"x" * 5000)
"""


def sample(at: float, sent: int, received: int, sent_at: float, received_at: float) -> TalkSample:
    return TalkSample(at, sent, received, sent_at, received_at)


def test_requests_are_told_apart_by_when_bytes_went_and_came() -> None:
    found = exchanges_of(
        [
            sample(0.00, 100, 50, -1.0, -0.9),  # idle
            sample(0.10, 200, 50, 0.05, -0.9),  # asked at 0.05
            sample(0.50, 200, 550, 0.05, 0.45),  # a first part of the answer
            sample(0.90, 200, 1050, 0.05, 0.85),  # the rest
            sample(1.00, 300, 1060, 0.95, 0.87),  # its last bytes, and the next request
            sample(1.20, 300, 1060, 0.95, 0.87),
        ]
    )
    assert [(one.begin_s, one.end_s, one.received_bytes, one.whole) for one in found] == [
        (0.05, 0.87, 1010, True),
        (0.95, 1.20, 0, False),
    ]
    assert exchanges_of([]) == [] and exchanges_of([sample(0.0, 5, 5, -2, -1)]) == []


def test_weights_sent_between_two_samples_are_no_part_of_the_next_question() -> None:
    found = exchanges_of(
        [
            sample(0.0, 100, 0, -0.5, -1.0),
            sample(0.1, 100, 500, -0.5, 0.05),
            sample(0.2, 100 + (8 << 20), 600, 0.19, 0.17),  # weights, their answer, a question
            sample(0.6, 100 + (8 << 20), 1600, 0.19, 0.55),
        ]
    )
    assert [one.is_transfer for one in found] == [False, True, False]
    assert (found[2].begin_s, found[2].end_s, found[2].received_bytes) == (0.19, 0.55, 1000)


def test_a_request_under_way_when_sampling_begins_lasts_since_it_was_sent() -> None:
    (one,) = exchanges_of([sample(0.0, 10, 0, -0.4, -2.0), sample(0.3, 10, 70, -0.4, 0.25)])
    assert (one.begin_s, one.end_s, one.received_bytes) == (-0.4, 0.25, 70)


def server(port: int, *exchanges: Exchange, pid: int = 7) -> Asked:
    return Asked(Server("job", pid, port, "server.py", (0,)), f"127.0.0.1:{port}", {11: exchanges}, 1.0, 0.5)


def test_rows_say_how_long_a_server_was_asked_and_how_long_alone() -> None:
    weights = Exchange(6.0, 6.5, 8 << 20, 10, True)
    rows = server_rows(
        [
            server(1, Exchange(1.0, 2.0, 10, 1000, True), Exchange(3.0, 5.0, 10, 2000, True), weights),
            server(2, Exchange(1.0, 1.5, 10, 500, True), Exchange(3.0, 3.5, 10, 500, True)),
        ],
        0.0,
        10.0,
    )
    values = {(row.instance[-1:], row.name.removeprefix("server.")): row for row in rows}
    assert {key: values[key].value for key in (("1", "asked_s"), ("1", "alone_s"), ("2", "asked_s"), ("2", "alone_s"))} == {
        ("1", "asked_s"): 3.0, ("1", "alone_s"): 2.0, ("2", "asked_s"): 1.0, ("2", "alone_s"): 0.0,
    }  # fmt: skip
    assert values["1", "transfers"].value == 1 and values["1", "transfer_s"].value == 0.5
    assert values["1", "questions"].value == 2 and values["1", "pace"].value == pytest.approx(0.001)
    assert values["", "any_asked_s"].value == 3.0 and values["", "rounds"].value == 2
    assert values["", "idle_s"].value == 1.0 and values["", "idle_in_round_s"].value == 0.5
    assert server_rows([], 0.0, 10.0) == []


def test_a_step_has_its_part_of_the_requests_and_no_more_than_the_rank_waited() -> None:
    asked = [server(1, Exchange(0.5, 1.5, 1, 1, True)), server(2, Exchange(1.0, 2.5, 1, 1, True))]
    edges = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert asked_in_steps(asked, 11, edges, np.ones(4)).tolist() == [0.5, 1.0, 0.5, 0.0]
    assert asked_in_steps(asked, 11, edges, np.full(4, 0.2)).tolist() == [0.2, 0.2, 0.2, 0.0]
    assert asked_in_steps(asked, 12, edges, np.ones(4)).tolist() == [0.0] * 4
    assert union_s([(2.0, 3.0), (0.0, 1.0), (0.5, 1.5)]) == [(0.0, 1.5), (2.0, 3.0)]


def test_a_process_that_a_rank_is_connected_with_is_found_and_its_answers_are_timed() -> None:
    with subprocess.Popen([sys.executable, "-c", ANSWERS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            me = cast(
                Any, SimpleNamespace(pid=os.getpid(), owner=os.getuid(), identity=SimpleNamespace(job="job", rank=3))
            )
            assert find_servers([me]) == ()  # it listens, and nobody asks
            with socket.create_connection(("127.0.0.1", port)) as asks:
                watch = ServerWatch([me], Path("/"))
                watch.find()
                assert watch.servers == (Server("job", process.pid, port, "python -c", (3,)),)
                watch.start()
                for _ in range(3):
                    asks.sendall(b"ask")
                    left = 5000
                    while left:
                        left -= len(asks.recv(left))
                (found,) = watch.stop()
        finally:
            process.kill()
    answered = [one for one in found.exchanges[os.getpid()] if one.received_bytes >= 5000]
    assert 2 <= len(answered) <= 3 and all(one.seconds >= 0.15 for one in answered)
    assert found.run_s >= 0 and watch.notes == []
