"""No user makes looking for ranks take so long that those of others are not found: not by many processes, nor by what they map and hold."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest
from pace import pace_s
from rank_trees import Tree, torchrun

from rankscope.observer.census import kinship, live_environ
from rankscope.observer.census.candidates import EACH_S, FREELY_S, scan
from rankscope.observer.census.ranks import find_ranks
from rankscope.probes.host.maps import Mapping
from rankscope.unwinder.interpreter.elf_facts import ElfFacts

TRAIN = ["/usr/bin/python3.11", "-u", "train.py"]
# Budgets are seconds of a clock. What is done beside them, to list processes above all, takes 2 to 5 paces.
BUDGETS_S, LISTING_PACES = FREELY_S + 3 * EACH_S, 10


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def real(tree: Tree, first: int = 90_000) -> list[tuple[int, int]]:
    pids = [tree.process(first + rank, 1, "python3.11", TRAIN, torchrun(rank, rank, 3), uid=1000) for rank in range(3)]
    tree.serve(pids[0], 29500, pids[1:])
    return list(enumerate(pids))


def found(tree: Tree) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """Ranks of user 1000, and notes; it takes no longer than it may."""
    pace = pace_s()
    began = time.process_time()
    census = find_ranks(tree.root)
    took = time.process_time() - began
    enough = BUDGETS_S + LISTING_PACES * max(pace, pace_s())
    assert took < enough, f"{took:.1f} s of {enough:.1f} s"
    return [(one.identity.rank, one.pid) for one in census.ranks if one.owner == 1000], census.notes


def test_processes_with_tens_of_thousands_of_mappings_hide_nobody(tree: Tree) -> None:
    lines = "".join(f"7f{n:010x}-7f{n:010x} r--p 00000000 fe:00 9   /home/x/{n}\n" for n in range(60_000))
    (tree.root / "maps").write_text(lines)
    for number in range(300):
        pid = tree.process(1000 + number, 1, f"python{number // 100}", TRAIN, mapped=(), uid=1666)
        (tree.root / f"proc/{pid}/maps").unlink()
        os.link(tree.root / "maps", tree.root / f"proc/{pid}/maps")
    expected = real(tree)
    ranks, notes = found(tree)
    assert ranks == expected
    assert any(note.startswith("user 1666: ") and "were not examined" in note for note in notes)


def test_long_command_lines_of_thousands_are_not_held(tree: Tree) -> None:
    tree.process(1000, 1, "python3", ["ab"] * 21_000, uid=1666)
    tree.process(1001, 1, "python3", ["a" * 65_000], uid=1666)
    tree.process(1002, 1, "python3", TRAIN, uid=1666)
    held = {pid: one.cmdline for pid, one in scan(tree.root).candidates.items()}
    assert len(held[1000]) <= 512 and sum(map(len, held[1000])) <= 16_384
    assert held[1001] == ("a" * 16_384,) and held[1002] == tuple(TRAIN)


def test_what_is_below_a_rank_without_number_hides_nobody(tree: Tree) -> None:
    """In chains of sixty, each with a command line of 64 KB: whether one of those above compiles is asked of each of them."""
    above = tree.process(1000, 1, "python3", TRAIN, torchrun(0, 0, 500), uid=1666)
    (tree.root / "cmdline").write_bytes(b"ab\0" * 21_000)
    for number in range(1200):
        above = tree.process(2000 + number, above if number % 60 else 1000, "x", (), mapped=(), exe="/bin/x", uid=1666)
        (tree.root / f"proc/{above}/cmdline").unlink()
        os.link(tree.root / "cmdline", tree.root / f"proc/{above}/cmdline")
    expected = real(tree)
    ranks, _ = found(tree)
    assert ranks == expected


def test_candidates_beyond_number_hide_nobody(tree: Tree) -> None:
    """Each of these has to be compared with all others: children that claim no rank below processes that do, all of one job."""
    for number in range(1200):
        parent = tree.process(1000 + number, 1, f"python{number % 60}", TRAIN, torchrun(number, 0, 9000), uid=1666)
        tree.process(5000 + number, parent, "python", [f"ray::A{number}"], uid=1666)
    expected = real(tree)
    ranks, notes = found(tree)
    assert ranks == expected
    assert any(note.startswith("user 1666: ") and "were not examined" in note for note in notes)


def connected_with_itself(tree: Tree, pid: int, connections: int) -> None:
    lines = []
    for number in range(connections):
        first = 2000 + 20_000 * (pid % 2) + number  # no port of another one
        ends = f"0100007F:{first:04X}", f"0100007F:{first + 8000:04X}"
        for at, (local, peer) in enumerate((ends, ends[::-1])):
            inode = 10_000_000 * (pid % 100) + 2 * number + at
            tree.hold_as(pid, 2 * number + at + 1, inode)
            lines.append(f"   0: {local} {peer} 01 0:0 00:0 0  0  0 {inode} 1 0 20 4 30 10 -1\n")
    tree.tcp += lines


def test_connections_of_a_process_with_itself_keep_nobody_busy(tree: Tree) -> None:
    parent = tree.process(1000, 1, "python3", TRAIN, uid=1666)
    for pid in (1001, 1002):
        tree.process(pid, parent, "python3", TRAIN, uid=1666)
        connected_with_itself(tree, pid, 5000)
    tree.connect(1001, 1002, 45_000)
    expected = real(tree)
    ranks, _ = found(tree)
    assert ranks == expected


def test_of_thousands_of_files_with_the_name_of_the_c_library_a_few_are_opened(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tree.process(1000, 1, "python3", TRAIN, mapped=[f"/n/{number}/libc.so.6" for number in range(3000)])
    with (tree.root / f"proc/{pid}/maps").open("a") as maps:
        maps.write("7fff00000000-7fff00001000 r-xp 00000000 fe:00 9999   /usr/bin/python3.11\n")
    opened: list[str] = []

    def of_nothing(pid: int, mapping: Mapping, root: Path) -> contextlib.AbstractContextManager[None]:
        opened.append(mapping.path)
        return contextlib.nullcontext()

    monkeypatch.setattr(live_environ, "open_mapped", of_nothing)
    monkeypatch.setattr(live_environ, "read_facts", lambda file, names: ElfFacts(True, (), 0, ()))
    assert live_environ.read_live_environ(pid, tree.root) == {}
    assert opened[0] == "/usr/bin/python3.11" and 1 < len(opened) <= live_environ._ALIKE_MOST


def test_networks_with_connections_without_number_hide_nobody(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has network namespaces of his own, and each has a table of its own. All are kept."""
    monkeypatch.setattr(kinship, "_FREELY_BYTES", 100_000)
    monkeypatch.setattr(kinship, "_EACH_BYTES", 20_000)
    read = 0
    parse = kinship.parse_net_tcp

    def counted(data: bytes) -> dict[int, kinship.Pair]:
        nonlocal read
        read += len(data)
        assert not data or data.endswith(b"\n")
        return parse(data)

    monkeypatch.setattr(kinship, "parse_net_tcp", counted)
    pids = [
        tree.process(1000 + number, 1, "python3", TRAIN, torchrun(number // 2, 0, 20), uid=1666, net=5000 + number)
        for number in range(40)
    ]
    expected = real(tree)
    lines = "".join(
        f"   0: 0100007F:{number:04X} 0100007F:9000 01 0:0 00:0 0  0  0 {900_000 + number} 1 0 20 4 30 10 -1\n"
        for number in range(300)
    )
    for pid in pids:
        tree.hold(pid, 900_007)
        (tree.root / f"proc/{pid}/net/tcp").write_text(lines)
    ranks, notes = found(tree)
    assert ranks == expected
    assert read <= 100_000 + 2 * 20_000 + len(lines)
    assert [note for note in notes if "more connections" in note] == [
        next(note for note in notes if note.startswith("user 1666: in the network of pid"))
    ]


def test_who_has_used_up_his_share_does_not_leave_others_without_connections_in_the_network_that_they_share(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinship, "_FREELY_BYTES", 10_000)
    monkeypatch.setattr(kinship, "_EACH_BYTES", 2_000)
    greedy = tree.process(1000, 1, "python3", TRAIN, uid=1666, net=5000)
    shared = tree.process(1001, 1, "python3", TRAIN, uid=1666)
    ranks = [pid for _, pid in real(tree)]
    tree.hold(greedy, 900_000)
    tree.hold(shared, 900_001)
    (tree.root / f"proc/{greedy}/net/tcp").write_text("x" * 50_000)
    connections = kinship.Connections(tree.root)
    assert connections.own(greedy, 1) == connections.own(shared, 1) == frozenset()
    assert connections.groups(ranks, dict.fromkeys(ranks, 1)) == [ranks]
    assert connections.notes == [f"user 1666: in the network of pid {greedy} are more connections than were examined"]


def test_open_files_without_number_hide_nobody(tree: Tree) -> None:
    files = tree.root / "files"
    files.mkdir()
    for number in range(21_000):
        (files / str(number)).symlink_to(f"socket:[{number}]")
    for pid in range(1000, 1100):
        tree.process(pid, 1, "python3", TRAIN, uid=1666)
        shutil.rmtree(tree.root / f"proc/{pid}/fd")
        (tree.root / f"proc/{pid}/fd").symlink_to(files)
    expected = real(tree)
    ranks, _ = found(tree)
    assert ranks == expected


def test_what_a_parent_wrote_into_its_environment_is_read_once_for_all_children(tree: Tree) -> None:
    """A rank that started the others may have written its number later, into memory that is found by its mappings."""
    parent = tree.process(1000, 1, "python3", TRAIN, torchrun(0, 0, 500), uid=1666)
    with (tree.root / f"proc/{parent}/maps").open("a") as maps:
        maps.writelines(f"7e{n:010x}-7e{n:010x} r--p 00000000 fe:00 9   /home/x/{n}\n" for n in range(60_000))
    for number in range(120):
        tree.process(2000 + number, parent, "python3", TRAIN, torchrun(number + 1, 1, 500), uid=1666)
    expected = real(tree)
    ranks, _ = found(tree)
    assert ranks == expected
