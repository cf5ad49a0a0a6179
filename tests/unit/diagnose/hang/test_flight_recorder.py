"""Who keeps the others waiting, by the dumps of PyTorch's flight recorder; and that a dump executes nothing."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from builders import Job, build

from rankscope.diagnose.face.cli.diagnose import run
from rankscope.diagnose.infer.flight import account, pickles
from rankscope.diagnose.infer.flight.account import MISSING, OTHER, SILENT, UNFINISHED, blames
from rankscope.diagnose.infer.flight.dumps import parse, read_folder
from rankscope.diagnose.infer.solve import judge
from rankscope.probes.base.errors import BadData

SHARED = Path(__file__).resolve().parents[5] / "shared/data/flight-recorder"
ALL, PAIR = "0", "7"


def entry(group: str, number: int, sequence: int, operation: str, elements: int) -> dict[str, Any]:
    return {
        "pg_id": number, "process_group": (group, "words"), "collective_seq_id": sequence, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": f"nccl:{operation}", "input_sizes": [[elements]], "state": "scheduled",
    }  # fmt: skip


def dump(
    came: int, done: int, ranks: int = 4, operation: str = "all_reduce", elements: int = 64, more: tuple[Any, ...] = ()
) -> bytes:
    """A rank that has enqueued `came` collectives of the group of all, and finished `done`."""
    pending = [entry(ALL, 0, sequence, operation, elements) for sequence in range(done + 1, came + 1)]
    status = {"last_enqueued_collective": came, "last_started_collective": -1, "last_completed_collective": done}
    config = {ALL: {"name": ALL, "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return pickle.dumps({
        "version": "2.9", "pg_config": config, "pg_status": {"0": status}, "entries": [*more, *pending],
    })  # fmt: skip


def told(*contents: bytes, first: int = 0) -> list[tuple[int, str]]:
    return [(one.rank, one.how) for one in blames([parse(one, rank) for rank, one in enumerate(contents, first)])]


def test_who_has_not_come_to_the_collective_of_the_others_is_missing() -> None:
    assert told(dump(8, 7), dump(8, 7), dump(7, 7), dump(8, 7)) == [(2, MISSING)]


def test_whose_device_does_not_finish_what_the_others_have_finished_is_told_so() -> None:
    assert told(dump(9, 8), dump(9, 8), dump(9, 8), dump(9, 5)) == [(3, UNFINISHED)]


@pytest.mark.parametrize("odd", [{"operation": "broadcast"}, {"elements": 65}])
def test_who_comes_with_another_operation_or_size_is_odd(odd: dict[str, Any]) -> None:
    assert told(dump(8, 7), dump(8, 7, **odd), dump(8, 7), dump(8, 7)) == [(1, OTHER)]


def test_parts_of_an_all_to_all_may_differ_in_size() -> None:
    usual = dump(8, 7, operation="all_to_all")
    assert told(usual, dump(8, 7, operation="all_to_all", elements=65), usual, usual) == []


def test_a_member_without_a_dump_is_told() -> None:
    assert told(dump(8, 7), dump(8, 7), dump(8, 7)) == [(3, SILENT)]


def test_nobody_is_accused_where_nothing_is_pending_or_all_have_come_to_the_same() -> None:
    assert told(*[dump(8, 8)] * 4) == []
    assert told(*[dump(8, 7)] * 4) == []


def test_who_came_late_because_it_waits_for_another_is_not_accused() -> None:
    """Rank 1 waits for rank 0 in a group of two, and so did not come to the collective of all; rank 0 is why."""

    def with_pair(content: bytes, came: int, done: int) -> bytes:
        found = pickle.loads(content)
        found["pg_config"][PAIR] = {"name": PAIR, "desc": "pair", "ranks": "[0, 1]"}
        found["pg_status"]["3"] = {"last_enqueued_collective": came, "last_completed_collective": done}
        found["entries"] = [entry(PAIR, 3, number, "all_reduce", 8) for number in range(done + 1, came + 1)] + found[
            "entries"
        ]
        return pickle.dumps(found)

    assert told(with_pair(dump(7, 7), 4, 4), with_pair(dump(7, 7), 5, 4), dump(8, 7), dump(8, 7)) == [(0, MISSING)]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data beside this checkout")
@pytest.mark.parametrize(
    ("case", "guilty", "how"), [("gpu_error_1st", {12, 14}, UNFINISHED), ("lock_gil_1st", {9, 14}, MISSING)]
)
def test_the_ranks_of_published_faults_are_named(case: str, guilty: set[int], how: str, tmp_path: Path) -> None:
    for path in (SHARED / case).glob("_dump_*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = blames(read_folder(tmp_path))
    assert {one.rank for one in found} == guilty
    assert {one.how for one in found} == {how}


class Evil:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def test_nothing_in_a_dump_is_executed(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(BadData, match="no plain data"):
            parse(pickle.dumps({"entries": Evil(tmp_path / "made")}, protocol), 0)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        b"\x80\x04]r\xff\xff\xff\x7f.",
        pickle.dumps([]),
        pickle.dumps({"pg_config": 1}),
        dump(8, 7)[:-9],
    ],
    ids=["empty", "text", "memo-bomb", "list", "other-shape", "cut"],
)
def test_what_is_no_dump_is_bad_data(content: bytes) -> None:
    with pytest.raises(BadData):
        parse(content, 0)


def nested(levels: int) -> list[Any]:
    """A list that holds one list twice, which holds one list twice, which …: unfolded it has 2 ** levels parts."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found, found]
    return found


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"pg_config": {"0": {"desc": nested(60), "ranks": "[0]"}}, "pg_status": {}, "entries": []}),
        pickle.dumps({"pg_config": {"0": {"desc": nested(3), "ranks": "[0]"}}, "pg_status": {}, "entries": []}),
        pickle.dumps({"pg_config": in_itself()}),
        b"\x80\x02})q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"Ns.",
        b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
    ],
    ids=["lists", "description", "in-itself", "tuples-as-a-key", "deep-key"],
)
def test_a_dump_of_few_bytes_takes_neither_time_nor_memory(content: bytes) -> None:
    """Each of these kept a reader that unfolds it busy for ever, or ended it."""
    began = time.process_time()
    with pytest.raises(BadData):
        parse(content, 0)
    assert time.process_time() - began < 10


def test_dumps_of_two_thousand_ranks_of_which_half_did_not_come_are_judged_at_once(tmp_path: Path) -> None:
    """Each member asked each other one, by the names of all: 1,000 ranks took 7 s, 4,000 would have taken 400."""
    for rank in range(2000):
        late = rank >= 1000
        odd = (entry(ALL, 0, 7, "all_reduce", 64),) if late else ()
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump(7 if late else 8, 7, ranks=2000, more=odd))
    dumps = read_folder(tmp_path)
    began = time.process_time()
    assert len(blames(dumps)) == 1000
    assert time.process_time() - began < 5


def test_a_dump_may_repeat_its_parts_as_the_recorder_does() -> None:
    shared = [["a", "b"], ("words", 7)]
    assert pickles.load(pickle.dumps({"x": [shared] * 1000, "y": shared})) == {"x": [shared] * 1000, "y": shared}


def test_a_folder_without_dumps_and_names_that_are_no_files_are_bad_data(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no dumps"):
        read_folder(tmp_path)
    os.mkfifo(tmp_path / "dump_1")
    with pytest.raises(BadData, match="not a regular file"):
        read_folder(tmp_path)


def test_the_command_judges_dumps_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump(7 if rank == 2 else 8, 7))
    code = run(
        folders=(),
        baseline=(),
        steps=None,
        window_s=1.0,
        at_most_s=1.0,
        job=None,
        pids=(),
        as_json=True,
        verbose=False,
        flight_recorder=tmp_path,
    )
    verdict = json.loads(capsys.readouterr().out)
    assert (code, verdict["status"]) == (2, "hang")
    assert [(one["cause"], one["ranks"]) for one in verdict["suspects"]] == [("missing-collective", [2])]


def test_dumps_name_who_is_missing_where_every_rank_waits_in_a_collective() -> None:
    job = Job(ranks_columns={rank: {"last_progress_s": 8.0, "in_collective_s": 7.9} for rank in range(8)})
    found = [parse(dump(7 if rank == 3 else 8, 7, ranks=job.ranks), rank) for rank in range(job.ranks)]
    verdict = judge.diagnose(build(job), flight=blames(found))
    assert verdict.status == "hang"
    assert [(one.cause, one.ranks) for one in verdict.suspects] == [("missing-collective", (3,))]
    assert "flight recorder" in {each.source for each in verdict.suspects[0].evidence}


def test_ranks_that_wait_in_a_collective_each_are_one_line_where_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN ranks each of which waits in another collective of all
    dumps = [dump(10 + rank, 9 + rank, ranks=30) for rank in range(30)]
    assert told(*dumps) == [(0, UNFINISHED)]
    # WHEN there is no room for all of them with all of their members
    monkeypatch.setattr(account, "_LOOKED_AT_MOST", 30 * 30 - 1)
    with pytest.raises(BadData, match="30 collectives"):
        told(*dumps)
    # AND ranks that wait in the same one have room
    assert told(*(dump(8, 7, ranks=30) for _ in range(29))) == [(29, SILENT)]


def test_whom_ranks_keep_waiting_is_kept_once_for_all_of_them() -> None:
    late = [dump(9, 5 if rank < 50 else 9, ranks=100) for rank in range(100)]
    odd = [dump(8, 7, ranks=9, operation="broadcast" if rank < 4 else "barrier") for rank in range(9)]
    for contents in (late, odd):
        found = blames([parse(content, rank) for rank, content in enumerate(contents)])
        assert len(found) in (50, 4) and len({id(one.waiting) for one in found}) == 1
