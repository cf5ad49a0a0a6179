"""A clone for scripts/setup whose .venv is there, and a host below a folder whose packages are real, for apt and dpkg themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
LOCKS = ("runtime.lock", "dev.lock", "s3.lock", "kubernetes.lock")
_PACKAGE = "Package: {}\nVersion: {}\nArchitecture: all\nMaintainer: nobody\nDescription: nothing\n"


def make_clone(folder: Path) -> Path:
    """With a pip that only writes down what it was asked."""
    (folder / "scripts").mkdir(parents=True)
    for name in ("setup", "trim", *LOCKS):
        shutil.copy(REPOSITORY / "scripts" / name, folder / "scripts" / name)
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    (folder / ".venv/pyvenv.cfg").write_text("include-system-site-packages = true\n")
    program(programs / "python", f'exec {sys.executable} "$@"')
    asked = f'echo "$PIP_NO_INDEX $PIP_FIND_LINKS: $@" >> {folder}/asked'
    program(programs / "pip", f"{asked}; touch {programs}/rankscope; chmod +x {programs}/rankscope")
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def set_up(
    clone: Path, *arguments: str, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> tuple[int, list[str], str]:
    """(exit code, what pip was asked, what was said). From `cwd` it is called by the path from there."""
    (clone / "asked").write_text("")
    script = clone / "scripts/setup"
    said = subprocess.run(
        [str(script if cwd is None else script.relative_to(cwd)), *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return said.returncode, (clone / "asked").read_text().splitlines(), said.stdout + said.stderr


def make_deb(folder: Path, name: str, version: str = "1", depends: str = "") -> Path:
    """A real package with nothing in it, named as apt-get download names it."""
    control = folder / "made/DEBIAN/control"
    control.parent.mkdir(parents=True, mode=0o755)
    control.write_text(_PACKAGE.format(name, version) + (f"Depends: {depends}\n" if depends else ""))
    file = folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(folder / "made"), str(file)]
    subprocess.run(command, capture_output=True, check=True)
    shutil.rmtree(folder / "made")
    return file


class Host:
    """A host below a folder: apt-get, dpkg and dpkg-query are the real ones, and see its packages alone."""

    def __init__(self, folder: Path, installed: dict[str, str]) -> None:
        self._folder = folder
        for name in (
            "var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/dpkg/triggers", "state/lists/partial", "cache/archives/partial",
            "etc/apt.conf.d", "etc/preferences.d", "bin",
        ):  # fmt: skip
            (folder / name).mkdir(parents=True)
        (folder / "state/extended_states").touch()
        status = [_PACKAGE.format(*one) + "Status: install ok installed\n" for one in installed.items()]
        (folder / "var/lib/dpkg/status").write_text("\n".join(status))
        database = folder / "var/lib/dpkg"
        programs = folder / "bin"
        dpkg, query, apt = (shutil.which(name) for name in ("dpkg", "dpkg-query", "apt-get"))
        program(programs / "dpkg", f'exec {dpkg} --root={folder} --log={folder}/log --force-unsafe-io "$@"')
        program(programs / "dpkg-query", f'exec {query} --admindir={database} "$@"')
        options = {
            "Dir::State": "state", "Dir::State::status": "var/lib/dpkg/status", "Dir::Cache": "cache", "Dir::Etc": "etc",
            "Dir::Log": "state", "Dir::Bin::dpkg": "bin/dpkg",
        }  # fmt: skip
        given = " ".join(f"-o {name}={folder / path}" for name, path in options.items())
        program(programs / "apt-get", f'echo "$@" >> {folder}/apt; exec {apt} {given} -o Debug::NoLocking=1 "$@"')
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin"}

    def apt(self) -> list[str]:
        """What apt-get was asked."""
        file = self._folder / "apt"
        return file.read_text().splitlines() if file.exists() else []

    def before_each_query(self, command: str) -> None:
        """Run a shell command each time that it is asked which packages there are."""
        file = self._folder / "bin/dpkg-query"
        file.write_text(file.read_text().replace("exec", f"{command}\nexec", 1))

    def version(self, package: str) -> str | None:
        """Of a package that is installed."""
        command = [self._folder / "bin/dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return said.removeprefix("installed ") if said.startswith("installed ") else None
