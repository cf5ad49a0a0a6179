"""What `ranks`, `doctor` and tier 0 read of others comes out of a process without rights, as data."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from found_rank import LIBRARIES, RANK

from rankscope.diagnose.face.cli import main
from rankscope.observer import doctor
from rankscope.observer.apart import plain, wire
from rankscope.observer.apart.look import look
from rankscope.observer.census.candidates import Candidate
from rankscope.observer.census.collectives import SeenCollectives
from rankscope.observer.census.found import RankCensus, Rejected
from rankscope.observer.census.identity import Claim
from rankscope.observer.sight import Sight
from rankscope.probes.base.errors import BadData
from rankscope.probes.confine import credentials

CLAIM = Claim("torchrun", "job", 1, 1, 2, 2, "")
ALONE = Candidate(9, 1, "python", 90, True, ("python", "x"), CLAIM, LIBRARIES, "node")
SIGHT = Sight(
    RankCensus((RANK,), (Rejected(9, "python", "why"),), ("a note",), (ALONE,)),
    (SeenCollectives("job", (("gloo", "libtorch.so"),), ("libx.so",)),),
    {7: "GPUs 0, 1"},
)


@dataclass(frozen=True, slots=True)
class Said:
    words: tuple[str, ...]
    number: int | None = None


def test_what_was_seen_comes_back_as_it_was() -> None:
    assert plain.unpack(Sight, plain.pack(SIGHT)) == SIGHT


def test_text_comes_back_printable() -> None:
    assert plain.unpack(Said, plain.pack(Said(("\x1b[2J", "\udc80")))).words == ("\\x1b[2J", "\\udc80")


@pytest.mark.parametrize(
    "told",
    [{}, [], [["a"]], ["a", 1], [[1], 1], [["a"], "1"], [["a"], True], [["a"], 1, 2], [["a"], 10**30], [["a"], []], None, [["a"], 1.5]],
    ids=repr,
)  # fmt: skip
def test_anything_else_is_refused(told: object) -> None:
    with pytest.raises(BadData):
        plain.unpack(Said, json.dumps(told).encode())


def test_what_would_fill_memory_is_refused() -> None:
    with pytest.raises(BadData, match="absurdly much"):
        plain.unpack(Said, b"[" + b"[]," * 1_000_000 + b"[]]")


def test_command_lines_of_those_that_are_no_ranks_are_not_told() -> None:
    assert (SIGHT.census.brief().alone, SIGHT.census.brief().ranks) == ((), (RANK,))


def test_depth_without_end_is_refused() -> None:
    with pytest.raises(BadData):
        plain.unpack(Said, b"[" * 200_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
def test_who_looks_is_another_user_with_two_capabilities() -> None:
    def ourselves() -> Said:
        lines = Path("/proc/self/status").read_text().splitlines()
        told = dict(line.split(":", 1) for line in lines if ":" in line)
        wanted = ("Uid", "CapEff", "NoNewPrivs", "Seccomp")
        return Said(tuple(told[name].split()[0] for name in wanted))

    user, capabilities, new, filtered = look(ourselves, Said).words
    assert (user, new, filtered) == (str(credentials.NOBODYS_USER), "1", "2")
    assert int(capabilities, 16).bit_count() == 2


def test_ranks_are_sought_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What reads others' bytes is never the process that prints."""
    here = os.getpid()

    def note(_: Path) -> RankCensus:
        return RankCensus((), (), (f"made by {os.getpid() != here}",))

    monkeypatch.setattr("rankscope.observer.sight.find_ranks", note)
    assert main.run(["ranks"]) == 3
    assert "note  made by True" in capsys.readouterr().out
    assert doctor._collectives(Path("/")).detail == "no training process runs now"


@pytest.mark.parametrize(
    "error", [BadData("so it is"), FileNotFoundError(2, "No such file")], ids=lambda one: type(one).__name__
)
def test_its_errors_are_ours(error: Exception) -> None:
    def fail() -> Said:
        raise error

    with pytest.raises(type(error)):
        look(fail, Said)


def _file(data: bytes, flags: int = os.MFD_ALLOW_SEALING) -> int:
    made = os.memfd_create("seen", os.MFD_CLOEXEC | flags)
    os.write(made, data)
    return made


@pytest.mark.parametrize(
    ("files", "most_bytes", "why"),
    [
        (lambda: [], 99, "sent no file"),
        (lambda: [_file(b"[[]]"), _file(b"[[]]")], 99, "sent no file"),
        (lambda: [_file(b"[[], null]", 0)], 99, "can still change"),
        (lambda: [_file(b"[[], null]")], 3, "sent more than"),
        (lambda: [_file(b"[[], 7, 8]")], 99, "unexpected data"),
        (None, 99, "sent nothing"),
    ],
)
def test_what_a_look_tells_is_one_file_that_nobody_can_change(
    files: Callable[[], list[int]] | None, most_bytes: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(
        _work: object,
        _services: object,
        heard: Callable[[dict[str, Any], Sequence[int]], bool],
        *_: object,
        **__: object,
    ) -> None:
        assert heard({"what": "else"}, ()) is False
        if files is not None:
            handed = files()
            try:
                heard({"what": "seen"}, handed)
            finally:
                wire.close_all(handed)

    module = sys.modules[look.__module__]
    monkeypatch.setattr(module, "_MOST_BYTES", most_bytes)
    monkeypatch.setattr(module, "run", tell)
    with pytest.raises(BadData, match=why):
        look(lambda: Said(()), Said)
