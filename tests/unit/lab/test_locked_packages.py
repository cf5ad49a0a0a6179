"""What scripts/setup installs is what was locked: every version by its hashes, with or without a network."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from setup_clones import make_clone, set_up

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
PINNED = re.compile(r"^([\w.-]+)==([\w.]+)(?: ; .*?)? \\$")


def locked(name: str) -> dict[str, set[str]]:
    """Package → its versions (several: for different Pythons) of a lock."""
    found: dict[str, set[str]] = {}
    for line in (REPOSITORY / "scripts" / name).read_text().splitlines():
        if match := PINNED.match(line):
            found.setdefault(match[1].lower().replace("_", "-"), set()).add(match[2])
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("runtime.lock", [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]),
        ("dev.lock", [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]),
        ("image.lock", [*PROJECT["project"]["dependencies"], *EXTRAS["otlp"], *EXTRAS["dask"], *EXTRAS["nvsentinel"]]),
    ],
)
def test_every_dependency_is_locked_at_a_version_that_serves(lock: str, wanted: list[str]) -> None:
    found = locked(lock)
    for requirement in wanted:
        match = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
        assert match, requirement
        versions = found.get(match[1].lower())
        assert versions, f"{requirement}: not in {lock}; run scripts/setup --lock"
        assert all(numbers(version) >= numbers(match[2]) for version in versions), (requirement, versions)


@pytest.mark.parametrize("lock", ["runtime.lock", "dev.lock", "s3.lock", "image.lock", "kubernetes.lock"])
def test_every_line_of_a_lock_is_a_version_or_a_hash(lock: str) -> None:
    lines = (REPOSITORY / "scripts" / lock).read_text().splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert PINNED.match(line) or re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}( \\)?", line), line
        if PINNED.match(line):
            assert following.startswith("    --hash="), line


def test_the_tests_run_with_the_versions_that_are_delivered() -> None:
    runtime = locked("runtime.lock")
    for other in (locked("dev.lock"), locked("image.lock")):
        assert {name: other[name] for name in runtime if name in other} == {
            name: runtime[name] for name in runtime if name in other
        }
    assert set(runtime) - set(locked("image.lock")) == {"setuptools"}  # which builds the wheel


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "clone")


def test_packages_are_installed_by_their_hashes_and_rankscope_without_an_index(clone: Path) -> None:
    code, asked, said = set_up(clone)
    if code in (69, 77) and not asked:
        pytest.skip(f"distribution packages cannot be installed here: {said}")
    assert code == 0, said
    installs, ours = asked[:-1], asked[-1]
    assert len(installs) == 2 and all("--require-hashes --only-binary :all: -r scripts/" in line for line in installs)
    assert "--no-index --no-deps --no-build-isolation -e ." in ours
    # WHEN a lock changes, it is installed anew; else it is not
    assert set_up(clone)[1] == []
    with (clone / "scripts/runtime.lock").open("a") as lock:
        lock.write("# changed\n")
    assert len(set_up(clone)[1]) == 3


def test_without_a_network_everything_comes_from_the_folder(clone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    code, asked, said = set_up(clone, "--offline", str(folder), "--runtime")
    if code in (69, 77) and not asked:
        pytest.skip(f"distribution packages are missing here: {said}")
    assert code == 0, said
    assert len(asked) == 2 and all(line.startswith(f"1 {folder}: install ") for line in asked)
    assert "runtime.lock" in asked[0] and not any("dev.lock" in line for line in asked)
    assert set_up(clone, "--offline", str(tmp_path / "none"))[0] == 64
    assert set_up(clone, "--offline", str(folder), "--jobs")[0] == 64
    for alone in ("--offline", "--fetch", "--torch-index"):
        assert set_up(clone, alone)[:2] == (64, [])


def test_a_folder_with_blanks_in_its_name_is_one_folder_to_pip(clone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "of a #1 stick"
    folder.mkdir()
    code, asked, said = set_up(clone, "--offline", str(folder), "--runtime")
    if code in (69, 77) and not asked:
        pytest.skip(f"distribution packages are missing here: {said}")
    assert [line.partition(": install ")[0] for line in asked] == [f"1 {folder.as_uri()}"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize(
    "whose",
    ["the folder", "a file in it", "open to others", "a file open to others", "behind a link", "a folder above"],
)
def test_what_others_can_put_there_is_not_installed_by_root(clone: Path, tmp_path: Path, whose: str) -> None:
    folder = tmp_path / "above/packages"
    folder.mkdir(parents=True)
    file = folder / "one.deb"
    file.touch()
    if whose == "open to others":
        folder.chmod(0o777)
    elif whose == "a file open to others":
        file.chmod(0o664)
    elif whose == "behind a link":
        file.rename(tmp_path / "one.deb")
        file.symlink_to(tmp_path / "one.deb")
    else:
        os.chown({"the folder": folder, "a file in it": file, "a folder above": folder.parent}[whose], 65534, 65534)
    code, asked, said = set_up(clone, "--offline", str(folder), "--runtime")
    assert (code, asked) == (77, []) and "others than root can write" in said and "one.deb" not in said


def slow(clone: Path) -> Path:
    """pip takes long, and writes down its processes."""
    pids = clone / "pids"
    (clone / ".venv/bin/pip").write_text(f"#!/bin/sh\necho $$ >> {pids}\nsleep 60\n")
    return pids


def begun(clone: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([str(clone / "scripts/setup"), "--runtime"], stdout=subprocess.PIPE, text=True)


def until(true: object, seconds: float = 20.0) -> bool:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


def alive(group: int) -> list[int]:
    return [
        one.pid for one in psutil.process_iter() if one.status() != psutil.STATUS_ZOMBIE and group_of(one.pid) == group
    ]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def test_a_setup_that_is_ended_leaves_no_pip_behind_and_two_wait_for_one_another(clone: Path) -> None:
    pids = slow(clone)
    with begun(clone) as first:
        if not until(lambda: pids.exists() or first.poll() is not None) or first.poll() is not None:
            pytest.skip("distribution packages are missing here")
        with begun(clone) as second:
            assert second.stdout is not None and "another scripts/setup is at work" in second.stdout.readline()
            second.kill()
        (pip,) = pids.read_text().split()
        group = os.getpgid(int(pip))
        first.send_signal(signal.SIGTERM)
        assert first.wait(10) == 130
    assert group != os.getpgid(0)
    assert until(lambda: not alive(group), 5)
