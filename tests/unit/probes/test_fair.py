"""What is left for a user when all together had much: little for who took much, in large pieces or in small ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankscope.probes.host.fair import Fair, least_first, whose


@pytest.mark.parametrize("piece", [0.2, 0.0004])
def test_who_takes_much_in_whatever_pieces_comes_to_an_end_and_others_go_on(piece: float) -> None:
    fair, taken = Fair(2.0, 0.5), 0.0
    while fair.left(lambda: "many") > 0:
        fair.spend(piece, lambda: "many")
        taken += piece
        assert taken < 2.0 + 0.5 + 2 * piece
    assert fair.left(lambda: "other") == 0.5
    fair.spend(0.1, lambda: "other")
    assert fair.left(lambda: "other") == pytest.approx(0.4)


def test_nobody_is_asked_who_it_is_while_there_is_plenty() -> None:
    fair = Fair(2.0, 0.5)
    for _ in range(1000):
        assert fair.left(lambda: pytest.fail("asked")) > 0
        fair.spend(0.0004, lambda: pytest.fail("asked"))


def test_who_leaves_next_to_nothing_of_what_is_free_leaves_others_their_own() -> None:
    fair = Fair(2.0, 0.5)
    fair.spend(1.999, lambda: "many")
    assert fair.left(lambda: "other") == 0.5
    assert fair.left(lambda: "many") == pytest.approx(0.001)


def test_of_root_each_control_group_counts_as_one(tmp_path: Path) -> None:
    for pid, uid, group in ((7, 0, "/pod-a"), (8, 0, "/pod-b"), (9, 1000, "/pod-a")):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::{group}\n")
        lines = {"Name": "x", "State": "S (x)", "Tgid": pid, "Pid": pid, "PPid": 1, "Uid": f"{uid}\t{uid}\t{uid}\t{uid}",
                 "NSpid": pid, "Threads": 1, "Cpus_allowed_list": 0}  # fmt: skip
        (folder / "status").write_text("".join(f"{name}:\t{value}\n" for name, value in lines.items()))
    assert len({whose(pid, tmp_path) for pid in (7, 8, 9)}) == 3
    assert whose(9, tmp_path) == "user 1000"
    assert whose(os.getpid(), Path("/"))


def test_the_next_is_always_of_whom_least_time_went_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    takes_s = {"a": 10.0, "b": 3.0, "c": 1.0}
    order = []
    for thing in least_first({"slow": ["a"] * 3, "none": [], "quick": ["b"] * 5, "few": ["c"]}):
        order.append(thing)
        now[0] += takes_s[thing]
    assert "".join(order) == "abcbbbaba"
