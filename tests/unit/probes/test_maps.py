"""/proc/PID/maps: what is a file is kept, what is nonsense is left out, and nobody else's bytes can break the parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.host.maps import Mapping, parse_mapped_files, parse_maps

MAPS = b"""\
55d0a0000000-55d0a0001000 r--p 00000000 fd:00 131 /usr/bin/my python3.10 (deleted)
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f1000000000-7f1000002000 r-xp 00001000 fd:00 132 /usr/lib/libpython3.10.so.1.0
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0 [stack]
7ffe10000000-7ffe10021000 rw-p 00000000 00:00 0 [anon:a/pool]
nonsense /usr/lib/x
"""


def test_only_file_mappings_are_kept() -> None:
    deleted, library = parse_maps(MAPS)
    assert (deleted.path, deleted.deleted, deleted.inode) == ("/usr/bin/my python3.10", True, 131)
    assert library == Mapping(
        0x7F1000000000, 0x7F1000002000, "r-xp", 0x1000, "fd:00", 132, "/usr/lib/libpython3.10.so.1.0", False
    )


def test_only_the_files_that_are_wanted_are_parsed_and_each_path_is_asked_for_once() -> None:
    asked: list[str] = []

    def wanted(path: str) -> bool:
        asked.append(path)
        return "libpython" in path

    assert [mapping.inode for mapping in parse_maps(MAPS + MAPS, wanted)] == [132, 132]
    assert len(asked) == len(set(asked))


def test_a_path_is_named_once_whether_or_not_the_file_was_deleted() -> None:
    assert parse_mapped_files(MAPS + MAPS.replace(b" (deleted)", b"")) == (
        "/usr/bin/my python3.10",
        "/usr/lib/libpython3.10.so.1.0",
        "/usr/lib/x",
    )


@given(st.binary(max_size=2000))
def test_any_maps_file_is_parsed(data: bytes) -> None:
    for text in (data, b"1-2 r--p 0 0:0 1 /" + data):
        parse_maps(text)
        parse_mapped_files(text)
