"""A job of which a part is not there is not healthy; a number that is a guess is told as one; jobs are called by their titles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
import pyarrow.parquet as pq
import pytest
from builders import Job, build

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window import missing
from rankscope.observer.window.folder import read_window, write_window
from rankscope.observer.window.missing import LocalRank, Missing, missing_ranks


def local(rank: int, local_rank: int, container: str = "", size: int = 3, world: int = 6) -> LocalRank:
    return LocalRank("job", "node", container, 1, rank, local_rank, world, size)


def columns(ranks: int, **said: Any) -> dict[int, dict[str, Any]]:
    return dict.fromkeys(range(ranks), said)


def text(verdict: Verdict, verbose: bool = False) -> str:
    return " ".join(" ".join(report(verdict, verbose)).split())


def test_a_window_with_all_ranks_of_its_host_is_healthy() -> None:
    verdict = diagnose(build(Job(ranks=4, ranks_columns=columns(4, local_world_size=4))))
    assert (verdict.status, verdict.exit_code) == ("healthy", 0)


def test_a_window_without_a_rank_of_its_host_is_unknown_and_says_which() -> None:
    verdict = diagnose(build(Job(ranks=3, ranks_columns=columns(3, local_world_size=4, world_size=4))))
    assert (verdict.status, verdict.exit_code) == ("unknown", 3)
    assert verdict.notes[0].code is NoteCode.RANKS_MISSING_HERE
    assert text(verdict).startswith(
        "UNKNOWN This cannot be judged: rank 3 should run on a host that was observed, and was not seen there"
    )


def test_who_is_slow_is_accused_though_others_are_missing() -> None:
    job = builders.slow_python(3, 0.08, ranks=6, hosts=1)
    job.ranks_columns.update(columns(6, local_world_size=8, world_size=8))
    verdict = diagnose(build(job))
    assert (verdict.status, verdict.suspects[0].ranks) == ("fault", (3,))
    assert any(note.code is NoteCode.RANKS_MISSING_HERE and "ranks 6, 7" in note.text for note in verdict.notes)


def test_ranks_of_hosts_without_a_window_are_only_noted() -> None:
    verdict = diagnose(build(Job(ranks=4, ranks_columns=columns(4, local_world_size=4, world_size=8))))
    assert verdict.status == "healthy"
    [note] = [note.text for note in verdict.notes if note.code is NoteCode.RANKS_MISSING]
    assert note.startswith("4 of 8 ranks were not seen") and note.endswith("(ranks 4-7)")


def test_each_launcher_of_a_host_misses_its_own() -> None:
    assert missing_ranks([local(0, 0), local(1, 1), local(2, 2), local(4, 1), local(5, 2)]) == {"job": Missing(1, (3,))}
    assert missing_ranks([local(0, 0, "a"), local(4, 1, "b")]) == {"job": Missing(4, ())}
    assert missing_ranks([local(5, -1), local(6, 0, size=0), local(7, 9)]) == {}
    assert missing_ranks([local(0, 0, size=10**9)])["job"].count < 10**4


def test_of_more_ranks_than_a_host_can_have_the_count_is_told_and_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two ranks of each of a hundred launchers of 4,096
    many = [local(5000 * at + place, place, size=4096, world=10**6) for at in range(100) for place in range(2)]
    assert missing_ranks(many) == {"job": Missing(100 * 4094, ())}
    # GIVEN many places, each of which says whom it misses
    some = [local(0, 0, f"container {at}", size=4, world=4) for at in range(100)]
    assert len(missing_ranks(some)["job"].numbers) == 300
    monkeypatch.setattr(missing, "_NUMBERS_MOST", 30)
    found = missing_ranks(some)["job"]
    assert (found.count, len(found.numbers)) == (300, 27)


def test_numbers_that_go_round_the_hosts_are_not_taken_for_missing() -> None:
    # GIVEN mpirun --map-by node on two hosts of three ranks each
    cyclic = [local(0, 0), local(2, 1), local(4, 2)]
    assert missing_ranks(cyclic) == {}
    assert missing_ranks(cyclic[:2]) == {"job": Missing(1, ())}
    assert missing_ranks([local(0, 0, world=3), local(2, 2, world=3)]) == {"job": Missing(1, (1,))}


def test_a_missing_rank_whose_number_nobody_tells_is_counted() -> None:
    own = ({"rank": 0, "local_rank": 0}, {"rank": 2, "local_rank": 1})
    said = {place: {**each, "local_world_size": 3, "world_size": 6} for place, each in enumerate(own)}
    verdict = diagnose(build(Job(ranks=2, ranks_columns=said)))
    assert any(note.text.startswith("1 rank should run") for note in verdict.notes)


def test_a_guessed_number_has_a_question_mark() -> None:
    job = builders.slow_python(3, 0.08, ranks=8)
    job.ranks_columns[3] = {"guessed": True}
    verdict = diagnose(build(job))
    assert verdict.suspects[0].ranks == (3,)
    assert "Rank 3? on" in text(verdict)
    assert any(note.code is NoteCode.RANKS_GUESSED and "rank 3" in note.text for note in verdict.notes)


def test_a_job_is_called_by_its_title_and_its_identity_is_kept() -> None:
    identity = "torch-0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f-10.0.0.1:29500"
    verdict = diagnose(build(Job(name=identity, ranks_columns=columns(8, title="train.py (slurm 7 night)"))))
    assert "job train.py (slurm 7 night), 8 ranks" in text(verdict)
    assert identity not in text(verdict)
    assert identity in text(verdict, verbose=True).replace(" ", "")
    assert f'"job": "{identity}"' in to_json(verdict)


def test_windows_without_the_columns_are_read(tmp_path: Path) -> None:
    folder = write_window(build(Job())[0], tmp_path)
    path = folder / "ranks.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["title", "guessed", "local_world_size"]), path)

    rows = read_window(folder).ranks.to_pylist()

    assert {(row["title"], row["guessed"], row["local_world_size"]) for row in rows} == {("", False, 0)}
    assert "job job-a, 8 ranks" in text(diagnose([read_window(folder)]))
