"""Fingerprints of what the cases run: a result is worth something for those sources alone."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from chaoskit.imported import PACKAGE, module_of, parts_of, plain
from chaoskit.scene import DIAGNOSE, RECORD, SWEEP

REPOSITORY = Path(__file__).resolve().parents[2]
# What only an option asks for that no case gives (scene.py): --history of record, --html, hosts side by side.
LEFT_OUT = {
    RECORD: frozenset((f"{PACKAGE}.diagnose.cli.keep_history", f"{PACKAGE}.diagnose.past.history")),
    DIAGNOSE: frozenset((f"{PACKAGE}.diagnose.report.build", f"{PACKAGE}.diagnose.report.render")),
    SWEEP: frozenset((f"{PACKAGE}.diagnose.sweep.peers",)),
}
# Of the kit: what only keeps and tells results, and what says which sources they are of.
_JUDGE_NOTHING = ("__init__.py", "__main__.py", "cli.py", "imported.py", "record.py", "sources.py", "table.py")
# What tells them of itself: `missing` reads its lines.
TELLS_WHAT_IT_LOADS = {"PYTHONPROFILEIMPORTTIME": "1"}
_TOLD = re.compile(r"^import time:[^|]*\|[^|]*\|\s*(" + PACKAGE + r"(?:\.\w+)*)$", re.MULTILINE)


def fingerprint(command: str, repository: Path = REPOSITORY) -> str:
    """Of all that the command is made of, and of what makes the faults and judges, by names and content; 16 hexadecimal digits."""
    whole = hashlib.sha256()
    for name, content in sorted({**parts_of(command, LEFT_OUT[command], repository), **_kit(repository)}.items()):
        whole.update(f"{name}\0".encode())
        whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()[:16]


def _kit(repository: Path) -> dict[str, bytes]:
    """A case that was good to an earlier judge may not be to this one."""
    kit = repository / "scripts/chaoskit"
    files = [path for path in kit.rglob("*") if path.suffix in (".py", ".c") and path.name not in _JUDGE_NOTHING]
    return {
        path.relative_to(repository).as_posix(): plain(path.read_text("utf-8"))
        if path.suffix == ".py"
        else path.read_bytes()
        for path in files
    }


def fingerprints() -> dict[str, str]:
    """By command."""
    return {command: fingerprint(command) for command in LEFT_OUT}


def missing(command: str, complained: str, repository: Path = REPOSITORY) -> list[str]:
    """Modules that a run loaded, by what it told (`TELLS_WHAT_IT_LOADS`), and that its fingerprint does not hold: there must be none."""
    held = {module_of(name) for name in parts_of(command, LEFT_OUT[command], repository) if name.endswith(".py")}
    return sorted(set(_TOLD.findall(complained)) - held - {PACKAGE})
