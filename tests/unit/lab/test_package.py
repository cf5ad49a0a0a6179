"""scripts/package: the wheel without a network; what a .deb would say of itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rankscope.observer import programs_ahead
from rankscope.probes.bpf import loader

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "scripts/package"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_help_says_what_is_built_and_how_it_ends() -> None:
    done = call("--help")
    assert done.returncode == 0 and "/opt/rankscope/.venv" in done.stdout and "exit codes:" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["DIR"],
        ["--out"],
        ["--offline"],
        ["--arch"],
        ["--arch", "x86"],
        ["--wheel", "--rpm"],
        ["--wheel", "--image"],
        ["--image", "--arch", "arm64"],
        ["--with", "kubectl"],
        ["--image", "--with"],
    ],
)
def test_wrong_usage_is_64(arguments: list[str]) -> None:
    assert call(*arguments).returncode == 64


def test_a_host_without_rpmbuild_is_told_what_to_install(tmp_path: Path) -> None:
    for tool in ("dirname", "uname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    command = ["/bin/bash", str(SCRIPT), "--rpm", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 69 and "apt-get install rpm" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="programs for the kernel are compiled as root")
def test_a_wheel_is_made_without_a_network_and_holds_what_is_no_python_too(tmp_path: Path) -> None:
    done = call("--wheel", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.iterdir()
    assert done.stdout.strip() == str(wheel)
    names = zipfile.ZipFile(wheel).namelist()
    objects = {name for name in names if "/compiler/objects/" in name}
    folder = "rankscope/probes/bpf/compiler/objects"
    # Programs for the kernel, of these sources and no others.
    assert objects == {f"{folder}/{key}.json" for machine in loader.MACHINES for key in programs_ahead.keys(machine)}
    assert len(objects) == 4
    for wanted in (
        "report/page.html",
        "report/page.css",
        "report/page.js",
        "report/README.md",
        "export/pprof.py",
        "schemas/index.json",
        "schemas/verdict.schema.json",
        "cli/start.py",
    ):
        assert f"rankscope/diagnose/face/{wanted}" in names
    assert not any(name.startswith(("scripts/", "tests/")) for name in names)
    assert len([name for name in names if name.endswith(".1") and "/share/man/man1/rankscope" in name]) > 15
    (entry,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "rankscope = rankscope.diagnose.face.cli.start:main" in zipfile.ZipFile(wheel).read(entry).decode()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What lies in a folder without git, and without a .venv."""
    script = tmp_path / "clone/scripts/package"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    return tmp_path / "clone"


def test_folders_are_taken_from_where_one_stands(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    command = ["clone/scripts/package", "--offline", "packages", "--out", "new/made"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 69 and "there is no .venv" in done.stderr
    assert (tmp_path / "new/made").is_dir() and not (clone / "new").exists()


def test_sources_that_are_no_clone_are_told(clone: Path, tmp_path: Path) -> None:
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to(sys.executable)
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    done = subprocess.run(
        [clone / "scripts/package", "--wheel"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69 and "package: git does not say what belongs to the sources" in done.stderr


def test_the_units_and_the_package_agree_where_the_command_lies() -> None:
    script = SCRIPT.read_text()
    for unit in (REPOSITORY / "scripts/deploy/systemd").glob("*.service"):
        assert "ExecStart=/opt/rankscope/.venv/bin/rankscope " in unit.read_text()
    assert "home=opt/rankscope" in script and '"/$home/.venv/bin/rankscope" "$root/usr/bin/rankscope"' in script


def maintained(script: str, root: Path, *arguments: str) -> None:
    """One of the package's scripts, as dpkg calls it for the host below `root`."""
    command = ["/bin/sh", str(REPOSITORY / "scripts/deploy/debian" / script), *arguments]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "DPKG_ROOT": str(root)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_removal_keeps_what_was_recorded_and_a_purge_leaves_nothing(tmp_path: Path) -> None:
    # GIVEN a host on which the package was compiled and has kept windows
    kept = [
        tmp_path / "var/lib/rankscope/watch",
        tmp_path / "var/lib/rankscope/sweep",
        tmp_path / "var/cache/rankscope",
    ]
    compiled = tmp_path / "opt/rankscope/.venv/lib/rankscope/__pycache__"
    other = tmp_path / "var/lib/other"
    for folder in (*kept, compiled, other):
        folder.mkdir(parents=True)
        (folder / "file").touch()

    maintained("prerm", tmp_path, "remove")
    assert not compiled.exists()
    maintained("postrm", tmp_path, "remove")
    assert all((folder / "file").exists() for folder in kept)
    maintained("postrm", tmp_path, "purge")
    assert not any(folder.exists() for folder in kept) and (other / "file").exists()
    assert not (tmp_path / "var/lib/rankscope").exists()


def test_a_package_whose_files_are_gone_can_be_removed(tmp_path: Path) -> None:
    maintained("prerm", tmp_path, "remove")
    maintained("postrm", tmp_path, "remove")
