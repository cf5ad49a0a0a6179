"""Runs that are started alike have one digest, from which no argument can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.observer.census.describe import common_arguments, run_of

TRAIN = ["python", "-u", "train.py", "--lr=0.1", "--token", "secret"]


def host(root: Path, machine: str = "0123456789abcdef0123456789abcdef", folder: str = "/srv/model") -> Path:
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cwd").symlink_to(folder)
    (root / "etc").mkdir()
    (root / "etc/machine-id").write_text(machine + "\n")
    return root


def test_ranks_of_one_run_and_of_the_next_have_one_digest(tmp_path: Path) -> None:
    root = host(tmp_path)
    first = run_of(7, [*TRAIN, "--local_rank=0", "--master-port", "29500"], root)
    assert first == run_of(7, [*TRAIN, "--local_rank=3", "--master-port", "29711"], root) == run_of(7, TRAIN, root)
    assert len(first) == 16 and "secret" not in first


@pytest.mark.parametrize("other", [[*TRAIN[:3], "--lr=0.2", *TRAIN[4:]], ["python", "-u", "test.py", *TRAIN[3:]]])
def test_other_arguments_and_programs_have_others(tmp_path: Path, other: list[str]) -> None:
    root = host(tmp_path)
    assert run_of(7, TRAIN, root) != run_of(7, other, root)


def test_other_folders_and_hosts_have_others(tmp_path: Path) -> None:
    found = {
        run_of(7, TRAIN, host(tmp_path / name, **more))
        for name, more in (("a", {}), ("b", {"folder": "/srv/other"}), ("c", {"machine": "f" * 32}))
    }
    assert len(found) == 3


def test_what_cannot_be_read_is_unknown_or_left_out(tmp_path: Path) -> None:
    assert run_of(7, [], host(tmp_path)) == ""
    assert run_of(8, TRAIN, tmp_path) not in ("", run_of(7, TRAIN, tmp_path))


def test_options_of_a_rank_go_with_their_values_and_no_others() -> None:
    arguments = ["train.py", "--node_rank", "1", "--rdzv_endpoint=a:1", "--ranking", "x", "--rank=4", "-v"]
    assert list(common_arguments(arguments)) == ["train.py", "--ranking", "x", "-v"]
