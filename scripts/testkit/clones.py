"""A copy of this clone, in which tests are run by forks of a process that has imported what they import."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTED = ".imported/rankscope"
PASSED = 100  # not 0: a test that ends the process that runs it ends it so
_PACKAGES = ("probes", "observer", "unwinder", "diagnose")


@dataclass(frozen=True, slots=True)
class Clone:
    """A copy of this clone as it is, without its .venv, whose packages are those that a fork imports."""

    folder: Path

    @staticmethod
    def made(folder: Path) -> Clone:
        """Copy what git lists."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=REPOSITORY, capture_output=True, check=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)
        (folder / IMPORTED).mkdir(parents=True)
        for package in _PACKAGES:
            (folder / IMPORTED / package).symlink_to(folder / package)
        return Clone(folder)

    def write(self, file: str, content: bytes, stamp: int) -> None:
        """`stamp`, another one for each content: compiled code is known by its file's time in seconds and its length."""
        (self.folder / file).write_bytes(content)
        os.utime(self.folder / file, (stamp, stamp))

    def fork(self, tests: Sequence[str], plugin: object, done: Callable[[], None] = lambda: None) -> int:
        """Run tests in a process group of its own, which ends with PASSED if they pass: its pid. `done` is called there at their end."""
        sys.stdout.flush()
        if pid := os.fork():
            return pid
        code = 70
        try:
            os.setsid()
            os.chdir(self.folder)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            sys.path.insert(0, str(self.folder / ".imported"))
            os.environ["PYTHONPATH"] = str(self.folder / ".imported")
            os.environ["CI"] = "1"  # the same examples each time (tests/conftest.py)
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            sys.dont_write_bytecode = False  # tests are compiled anew by pytest, which takes longer than most of them
            # A test that waited for a busy machine passes at its second try: that noticed nothing.
            options = ["-q", "-x", "-p", "no:cacheprovider", "--reruns", "1", *tests]
            ended_with = pytest.main(options, plugins=[plugin])
            done()
            code = PASSED if ended_with in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1
        finally:
            os._exit(code)


@contextlib.contextmanager
def cloned() -> Iterator[Clone]:
    """A copy that goes when it is done with."""
    with tempfile.TemporaryDirectory(prefix="rankscope-mutants-") as folder:
        Path(folder).chmod(0o755)
        yield Clone.made(Path(folder))


def ended(pid: int, longest_s: float) -> int | None:
    """The exit status, and nothing of its group is left; None where it had to be killed."""
    ready, descriptor = [], os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([descriptor], [], [], longest_s)
    finally:
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if ready else None


def import_all(clone: Clone, modules: Sequence[str], files: Collection[str]) -> None:
    """Import modules, but for these files and what imports them: forks begin with that."""
    sys.path.insert(0, str(clone.folder / ".imported"))
    imported = {name: imports_of(path.read_text()) for name, path in _modules(clone.folder).items()}
    broken = {name for name, path in _modules(clone.folder).items() if str(path.relative_to(clone.folder)) in files}
    while more := {name for name, others in imported.items() if name not in broken and others & broken}:
        broken |= more
    for one in modules:
        if one not in broken:
            with contextlib.suppress(Exception):
                importlib.import_module(one)


def _modules(folder: Path) -> dict[str, Path]:
    found = [path for package in _PACKAGES for path in (folder / package).rglob("*.py")]
    return {".".join(("rankscope", *path.relative_to(folder).with_suffix("").parts)): path for path in found}


@functools.cache
def imports_of(text: str) -> set[str]:
    """The modules that a file names in its imports, with what it takes of them."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found
