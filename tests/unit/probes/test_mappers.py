"""A file that was refused is tried again only when it is known that nobody maps it so often any more, or long after."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.probes.bpf.functions import mappers
from rankscope.probes.bpf.functions.uprobes import MappedTooOften

MAPPER, OTHER = 40, 30


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with (tmp_path / "library.so").open("wb") as library:
        yield Path(f"/proc/self/fd/{library.fileno()}")


@pytest.fixture
def root(tmp_path: Path, file: Path) -> Path:
    """A host with two processes: the later one maps the file 2,000 times."""
    inode = mappers.inode_of(file).decode()
    for pid, times in ((OTHER, 0), (MAPPER, 2_000)):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "maps").write_text(f"7f0000000000-7f0000001000 r-xp 00000000 fd:00 {inode} /library.so\n" * times)
        (folder / "status").write_text("Uid:\t1000\t1000\t1000\t1000\n")
    return tmp_path


def test_who_maps_a_file_most_is_found_and_whether_all_were_read(file: Path, root: Path) -> None:
    found = mappers.find_mapper(mappers.inode_of(file), root)
    assert (found.pid, found.count, found.complete) == (MAPPER, 2_000, True)
    assert "2000 times in one process" in str(found)
    (root / "proc" / str(MAPPER) / "maps").unlink()
    (root / "proc" / str(OTHER) / "maps").unlink()
    (root / "proc" / str(OTHER) / "maps").mkdir()  # cannot be read, and has not ended
    none = mappers.find_mapper(mappers.inode_of(file), root)
    assert (none.pid, none.complete, str(none)) == (0, False, "")


def test_a_search_that_ended_early_does_not_end_a_refusal(
    file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = mappers.Refused()
    refused.check(file, root)  # not refused before
    refused.add(file, mappers.find_mapper(mappers.inode_of(file), root))
    with pytest.raises(MappedTooOften, match="2000 times in one process"):
        refused.check(file, root)
    monkeypatch.setattr(mappers, "_SEARCH_S", 0.0)
    with pytest.raises(MappedTooOften):
        refused.check(file, root)
    monkeypatch.setattr(mappers, "_TRIED_AGAIN_S", 0.0)
    refused.check(file, root)
    monkeypatch.setattr(mappers, "_TRIED_AGAIN_S", 600.0)
    refused.check(file, root)  # forgotten


def test_the_process_found_last_time_is_asked_before_any_other(
    file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = mappers.Refused()
    refused.add(file, mappers.find_mapper(mappers.inode_of(file), root))
    monkeypatch.setattr(mappers, "_pids", lambda _: iter(()))
    with pytest.raises(MappedTooOften, match="2000 times"):
        refused.check(file, root)


def test_a_refusal_ends_when_all_were_read_and_nobody_maps_it_so_often(file: Path, root: Path) -> None:
    refused = mappers.Refused()
    refused.add(file, mappers.find_mapper(mappers.inode_of(file), root))
    shutil.rmtree(root / "proc" / str(MAPPER))
    refused.check(file, root)
    (root / "proc" / str(MAPPER)).mkdir()
    shutil.copy(root / "proc" / str(OTHER) / "maps", root / "proc" / str(MAPPER) / "maps")
    refused.check(file, root)  # forgotten
