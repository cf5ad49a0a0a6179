"""A dump is data that a job wrote: each bound of what is read of it, by itself."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.infer.flight import dumps, pickles
from rankscope.probes.base.errors import BadData


def _refused(content: bytes, because: str) -> None:
    with pytest.raises(BadData, match=because):
        pickles.load(content)


def test_no_class_or_function_is_found_even_where_the_instructions_were_not_looked_at() -> None:
    content = b"cos\nsystem\n."
    _refused(content, "it holds GLOBAL")
    with pytest.raises(BadData, match="it asks for os"):
        pickles._NoObjects(io.BytesIO(content)).load()


def test_a_few_parts_that_stand_for_billions_are_not_unfolded() -> None:
    folded: Any = ["x"]
    for _ in range(40):
        folded = [folded, folded]
    content = pickle.dumps(folded, protocol=2)
    assert len(content) < 1000
    _refused(content, "it repeats its parts more often than a dump does")


def test_more_parts_than_a_dump_has_are_not_even_made(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(list(range(200)), protocol=2)
    assert pickles.load(content) == list(range(200))
    monkeypatch.setattr(pickles, "PARTS_MOST", 100)
    monkeypatch.setattr(pickles._NoObjects, "load", lambda _: pytest.fail("made"))
    _refused(content, "it has more parts than a dump has")


def test_a_part_with_a_number_for_which_there_is_no_room_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles._NoObjects, "load", lambda _: pytest.fail("made"))
    _refused(b"\x80\x02]r\xff\xff\xff\x7f.", "it numbers its parts as no pickle does")


def test_a_folder_of_more_dumps_than_a_job_has_ranks_is_refused_before_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumps, "RANKS_MOST", 3)
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes(b"no dump")
    with pytest.raises(BadData, match="of more than 3 ranks"):
        dumps.read_folder(tmp_path)


def test_groups_that_share_one_list_of_members_are_counted_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a few bytes for each group, as the list of its ranks is the same text
    about = {"desc": "group", "ranks": str(list(range(50)))}
    content = pickle.dumps({"pg_config": {str(name): about for name in range(40)}, "pg_status": {}, "entries": []})
    monkeypatch.setattr(pickles, "PARTS_MOST", 1000)
    with pytest.raises(BadData, match="more groups than a job has"):
        dumps.parse(content, 0)
