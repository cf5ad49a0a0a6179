"""The stacks of all ranks of a hang as one tree: who is where, and who did not go on."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import builders
import numpy as np
import pytest
from builders import Job, build, columns
from starting import LOAD, starting

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.still.merged_stacks import merged_stacks
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.stack_tree import StackNode, as_json, fold, from_json, lines
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.events import of_look
from rankscope.diagnose.service.looks.look import Seen
from rankscope.observer.watch.blackbox import BlackBox
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

WAITS = ("collective", "all_reduce", "gloo", (StackFrame("all_reduce", "/x/site-packages/torch/d.py", 9),), 0.99)
READS = ("io", "read", "/data/a.bin", (LOAD,), 0.99)


def hanging(laggards: tuple[int, ...], ranks: int = 8) -> list[Window]:
    """All ranks but some wait in a collective; those read."""
    window = starting([READS if rank in laggards else WAITS for rank in range(ranks)])
    rows = [
        row | {"last_progress_s": None, "in_collective_s": 0.0 if row["rank"] in laggards else 20.0}
        for row in window.ranks.to_pylist()
    ]
    return [columns(window, "ranks", rows)]


@pytest.mark.parametrize(("ranks", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 3, 6), "0-3,6"), ((1, 3, 4), "1,3-4")])
def test_ranks_are_folded(ranks: tuple[int, ...], text: str) -> None:
    assert fold(ranks) == text


def test_the_tree_says_who_is_where_and_who_did_not_come_there_laggards_first() -> None:
    told = [text for _, text in lines(merged_stacks(gather(hanging((2, 5)), None)))]
    assert told[0].startswith("ranks 0-7: <module> (train.py:1)")
    assert told[1] == "ranks 2, 5: load_checkpoint (utils.py:12) > [waits for files (read, /data/a.bin)]"
    assert told[2].startswith(
        "ranks 0, 1, 3, 4, 6, 7 (not ranks 2, 5): all_reduce (d.py:9) > [waits for other ranks (all_reduce)]"
    )


def test_a_rank_inside_a_collective_at_the_end_is_there_however_long_it_was_elsewhere() -> None:
    window = starting([("io", "read", "", (LOAD,), 0.6), WAITS])
    rows = window.patterns.to_pylist()
    waits = next(row for row in rows if row["rank"] == 1 and row["kind"] == "collective")
    window = columns(window, "patterns", [*rows, waits | {"rank": 0, "beta": 0.3}])
    tree = merged_stacks(gather([window], None))
    assert "load_checkpoint" in " ".join(text for _, text in lines(tree))
    ended = [row | {"in_collective_s": 6.0} for row in window.ranks.to_pylist()]
    assert [
        text.partition(":")[0] for _, text in lines(merged_stacks(gather([columns(window, "ranks", ended)], None)))
    ] == ["ranks 0, 1"]


def test_what_a_program_was_given_is_the_same_tree_again_and_what_is_none_is_refused() -> None:
    tree = merged_stacks(gather(hanging((2, 5)), None))
    said = as_json(tree)
    assert from_json(json.loads(json.dumps(said))) == tree
    deep: dict[str, object] = {**said, "children": []}
    for _ in range(400):
        deep = {**said, "children": [deep]}
    for wrong in (
        None,
        [],
        {},
        {**said, "ranks": "0-4000000000"},
        {**said, "ranks": "a-b"},
        {**said, "children": 3},
        deep,
    ):
        assert from_json(wrong) is None


def test_ranks_that_no_window_holds_and_ranks_that_ended_are_told() -> None:
    (window,) = hanging((2,), ranks=4)
    rows = [row | {"world_size": 6} for row in window.ranks.to_pylist()]
    rows[1] |= {"state": "exited", "ended_s": 1.0, "exit_status": 9}
    tree = merged_stacks(gather([columns(window, "ranks", rows)], None))
    assert tree.missing == (4, 5)
    assert [node.ranks for node in tree.children if node.name == "[the process has ended]"] == [(1,)]


def test_a_job_that_claims_billions_of_ranks_fills_no_memory() -> None:
    (window,) = hanging((2,), ranks=4)
    rows = [row | {"world_size": 2**31 - 1} for row in window.ranks.to_pylist()]
    tracemalloc.start()
    verdict = diagnose([columns(window, "ranks", rows)])
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verdict.status == "hang" and verdict.stacks is not None
    assert verdict.stacks.missing == ()
    assert "2147483" not in to_json(verdict)
    assert most_bytes < 64 << 20


def test_the_verdict_of_a_hang_has_the_tree_and_no_other_verdict_has() -> None:
    verdict = diagnose(hanging((2,)))
    assert verdict.status == "hang"
    tree = json.loads(to_json(verdict))["stacks"]
    assert (tree["ranks"], tree["missing"]) == ("0-7", "")
    text = list(report(verdict))
    assert any(line.startswith("  stacks   ranks 0-7: ") for line in text)
    assert all(len(line) <= 80 for line in text)
    assert "stacks" not in json.loads(to_json(diagnose(build(Job()))))


def test_a_stack_of_any_depth_is_a_tree_that_can_be_read() -> None:
    deep = tuple(StackFrame(f"f{number}", "/srv/job/train.py", number + 1) for number in range(5000))
    window = starting([("io", "read", "", deep, 0.99), WAITS])
    tree = merged_stacks(gather([window], None))
    assert "4803 more" in json.dumps([text for _, text in lines(tree)]) or _depth(tree) < 220


def _depth(node: StackNode) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)


def test_ten_thousand_ranks_are_one_small_tree() -> None:
    few = gather(hanging((2, 5)), None)
    # GIVEN the same ranks 1,250 times
    times = 1250
    ranks = few.ranks.taken(np.tile(np.arange(8), times))
    table = few.patterns
    rows = np.tile(np.arange(len(table)), times)
    from dataclasses import fields, replace

    taken = {}
    for each in fields(table):
        value = getattr(table, each.name)
        if value is None:
            continue
        codes = getattr(value, "codes", None)
        taken[each.name] = replace(value, codes=codes[rows]) if codes is not None else value[rows]
    taken["rank"] = table.rank[rows] + 8 * np.repeat(np.arange(times), len(table))
    ranks = replace(ranks, number=np.arange(8 * times), world_size=np.full(8 * times, 8 * times))
    fleet = replace(few, ranks=ranks, patterns=replace(table, **taken))
    began = time.process_time()
    tree = merged_stacks(fleet)
    assert time.process_time() - began < 5
    assert len(tree.ranks) == 10_000
    assert len(list(lines(tree))) == 3


def test_the_black_box_shows_where_all_ranks_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = json.loads(to_json(diagnose(build(builders.stopped(5)))))
    seen = Seen(Alarm(AlarmKind.SLOWER, "job-a", 10.0, "no step"), verdict, "", 11.0, kept="../../nowhere")
    BlackBox(tmp_path / "blackbox").freeze("job-a", of_look(seen, 0.0).as_json("node-0"), 0.0)
    assert run(["blackbox", "19700101T000000Z-job-a", "--state", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "HANG Rank 5 on node-0: the process was stopped" in said[0] and "no step has ended for 7.8 s" in said[0]
    assert "             rank 5: device_wait (train.py:81) > [stopped]" in said
    assert not any("as a page" in line for line in said), "of a window that is in the history alone"
