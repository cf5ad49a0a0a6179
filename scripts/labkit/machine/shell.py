"""Running system commands for the lab, and the lab's one exception."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
EXIT_NOT_GOOD_ENOUGH = 1
EXIT_USAGE = 64
EXIT_MISSING = 69
EXIT_NOT_PERMITTED = 77


class LabError(Exception):
    """The lab cannot go on; the message says why, `help` what to do."""

    def __init__(self, message: str, help: str = "", exit_code: int = EXIT_MISSING) -> None:
        super().__init__(message)
        self.help = help
        self.exit_code = exit_code


class Impossible(LabError):
    """This host cannot make this fault; the case is left out and the table says so."""


def run(*argv: str | Path) -> str:
    """Standard output of a command; LabError with its last line of complaint where it fails."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise LabError(f"{words[0]} is not installed", "Run scripts/setup --lab.") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(words)}` did not end in 60 s") from None
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise LabError(f"`{' '.join(words)}` failed: {complaint}")
    return done.stdout


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module below scripts/ in a process of its own, wherever one stands."""
    return [sys.executable, str(REPOSITORY / "scripts/start.py"), name, *arguments]


def quietly(*argv: str | Path) -> bool:
    """Run a command of which nobody minds the failure; whether it succeeded."""
    try:
        run(*argv)
    except LabError:
        return False
    return True


def set_up(torch: bool) -> None:
    """Install what the clone's .venv lacks; nothing where RANKSCOPE_PYTHON names another interpreter."""
    package = "torch" if torch else "rankscope"
    if os.environ.get("RANKSCOPE_PYTHON") or _installed(package):
        return
    command = [str(REPOSITORY / "scripts/setup"), *(["--lab"] if torch else [])]
    print(f"{package} is not in .venv yet: scripts/setup{' --lab' if torch else ''}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode:
        raise LabError("scripts/setup failed: see above", exit_code=done.returncode)


def _installed(package: str) -> bool:
    # By its metadata, which pip writes last: an interrupted installation does not count.
    asked = [
        str(REPOSITORY / ".venv/bin/python"),
        "-I",
        "-c",
        f"import importlib.metadata as m; m.version({package!r})",
    ]
    try:
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def python() -> str:
    """The interpreter the ranks run on: RANKSCOPE_PYTHON, else that of the clone's .venv."""
    chosen = os.environ.get("RANKSCOPE_PYTHON") or str(REPOSITORY / ".venv/bin/python")
    if not Path(chosen).exists():
        raise LabError(f"no Python at {chosen}", "Run scripts/setup --lab.")
    return chosen


def rankscope() -> str:
    """The command under test: RANKSCOPE_COMMAND, else that of the clone's .venv."""
    chosen = os.environ.get("RANKSCOPE_COMMAND") or str(REPOSITORY / ".venv/bin/rankscope")
    if not Path(chosen).exists():
        raise LabError(f"no rankscope at {chosen}", "Run scripts/setup --lab.")
    return chosen
