"""Results in a file that is committed, a line for each kernel, and the table of them in .github/EVIDENCE.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kernelkit.kernels import KERNELS
from kernelkit.lines import Check
from labkit.machine.shell import REPOSITORY

RECORDED = Path(__file__).parent / "results.json"
EVIDENCE = REPOSITORY / ".github" / "EVIDENCE.md"
_HEADING, _BEFORE = "## Which kernels", "## What it costs"
_WORDS = "Kernels of the distribution's archive, booted in software emulation: `scripts/kernels --record` (`scripts/kernelkit`)."
COLUMNS = ("programs", "sampled stack", "timed call", "healthy job", "slow function", "kernel tests")


@dataclass(frozen=True, slots=True)
class Result:
    """What was found on one kernel. `ended`: empty where the guest switched itself off."""

    kernel: str
    machine: str
    release: str
    day: str
    seconds: int
    checks: tuple[Check, ...]
    ended: str = ""

    @property
    def key(self) -> str:
        """One result is kept for each."""
        return f"{self.kernel} {self.machine}"

    @property
    def good(self) -> bool:
        """Whether all that was asked was found right."""
        return not self.ended and bool(self.checks) and all(check.good for check in self.checks)


def read(path: Path = RECORDED) -> dict[str, Result]:
    """Read results by key; none where none were written."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text("utf-8"))
    return {
        result.key: result
        for one in found
        for result in (Result(**{**one, "checks": tuple(Check(**check) for check in one["checks"])}),)
    }


def keep(result: Result, path: Path = RECORDED) -> None:
    """Put a result in place of the earlier one for this kernel and machine. Stages that were not run again keep their checks."""
    kept = read(path)
    earlier = kept.get(result.key)
    if earlier is not None and earlier.release == result.release:
        again = {check.name for check in result.checks}
        result = replace(
            result, checks=(*(check for check in earlier.checks if check.name not in again), *result.checks)
        )
    kept[result.key] = result
    text = ",\n".join(json.dumps(asdict(kept[key])) for key in sorted(kept, key=_order))
    partial = path.with_suffix(".partial")
    partial.write_text(f"[\n{text}\n]\n", "utf-8")
    partial.replace(path)


def table(results: Mapping[str, Result]) -> str:
    """Write the results as a table in Markdown, a row for each kernel and machine."""
    lines = [f"| kernel | {' | '.join(COLUMNS)} | day |", "|---" * (len(COLUMNS) + 2) + "|"]
    for key in sorted(results, key=_order):
        result = results[key]
        checks = {check.name: check for check in result.checks}
        cells = [_cell(checks.get(name)) for name in COLUMNS]
        lines.append(f"| {result.release}, {result.machine} | {' | '.join(cells)} | {result.day} |")
    return "\n".join(lines)


def in_evidence(text: str, results: Mapping[str, Result]) -> str:
    """Put the table into the text of EVIDENCE, in place of the one that is there; without results nothing."""
    if not results:
        return text
    before, found, rest = text.partition(_HEADING)
    if not found:
        before, _, rest = text.partition(_BEFORE)
        rest = _BEFORE + rest
    else:
        rest = "## " + rest.partition("\n## ")[2]
    return f"{before}{_HEADING}\n\n{_WORDS}\n\n{table(results)}\n\n{rest}"


def _cell(check: Check | None) -> str:
    if check is None:
        return "not reached"
    words = check.words.split("; ")[0].replace("|", "\\|")
    return words if check.good else f"**{words}**"


def _order(key: str) -> tuple[str, int]:
    name, machine = key.split()
    names = [kernel.name for kernel in KERNELS]
    return machine, names.index(name) if name in names else len(names)
