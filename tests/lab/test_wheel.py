"""What a wheel installs: one package, with the BPF programs in it, and a command that observes from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from labsupport import REPOSITORY, RunningJob

pytestmark = pytest.mark.beside


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel of these sources, and with what rankscope needs from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    sources, fresh = folder / "sources", folder / "venv"
    sources.mkdir()
    # A copy: a build leaves a folder in the sources whose files would be in the next wheel too.
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=REPOSITORY, capture_output=True, check=True
    ).stdout.split(b"\0")
    present = [name.decode() for name in tracked if name and (REPOSITORY / name.decode()).exists()]
    subprocess.run(["cp", "-r", "--parents", *present, str(sources)], cwd=REPOSITORY, check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", str(sources), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)], check=True
    )
    venv.create(fresh, system_site_packages=True)  # on the distribution's Python, as .venv is
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", str(fresh), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    # A path, not a site folder: the editable installation that lies in it stays out of sight.
    (installed(fresh) / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return fresh


def installed(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


# Nobody, who may find and read all the same what lies in the folders of the tests.
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all,+dac_read_search",
          "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")  # fmt: skip


def call(environment: Path, *arguments: str, by: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [*by, environment / "bin/rankscope", *arguments], env=clean, cwd="/", capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def test_the_wheel_holds_one_package_with_its_sources(environment: Path) -> None:
    names = {path.name for path in installed(environment).iterdir()} - {"needed.pth"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"rankscope"}
    for package in ("probes", "unwinder", "observer", "diagnose"):
        wanted = {
            path
            for path in REPOSITORY.glob(f"{package}/**/*")
            if path.name.endswith((".py", ".c", ".h", ".md", ".html", ".css", ".js", ".rankscope", ".schema.json"))
        }
        there = {path.relative_to(REPOSITORY) for path in wanted}
        missing = [path for path in there if not (installed(environment) / "rankscope" / path).is_file()]
        assert missing == []


def test_the_installed_command_is_the_installed_package(environment: Path) -> None:
    code = "import rankscope.diagnose.face.cli.main as main; print(main.__file__)"
    said = subprocess.run([environment / "bin/python", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(installed(environment)))
    assert call(environment, "--help").returncode == 0
    assert call(environment, "--version").stdout.startswith("rankscope ")


def test_the_installed_command_shows_what_it_does_without_root_or_pytorch(environment: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    began = time.monotonic()
    done = call(environment, "demo", "--html", str(tmp_path / "page.html"), by=NOBODY)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 5 and "torch" not in done.stderr
    assert "backup-agent" in done.stdout and "| What to do next." in done.stdout
    assert (tmp_path / "page.html").stat().st_uid == 65534


def test_the_installed_command_observes(environment: Path, torchrun: Callable[..., RunningJob], tmp_path: Path) -> None:
    assert json.loads(call(environment, "doctor", "--json").stdout)["observable"]
    job = torchrun("60")
    found = json.loads(call(environment, "ranks", "--json").stdout)["ranks"]
    assert {rank["pid"] for rank in found if rank["job"] == job.name} == set(job.ranks())
    done = call(environment, "record", "--out", str(tmp_path), "--window", "3", "--job", job.name, "--json")
    assert done.returncode == 0, done.stderr
    (written,) = json.loads(done.stdout)
    assert written["ranks"] == 2
    assert written["steps"] > 5
    assert {path.name for path in Path(written["folder"]).iterdir()} >= {"window.json", "patterns.parquet"}
