"""The figures of a soak in a file: written in one piece after each round, so that a run that is killed has told what it saw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from labkit.machine.shell import EXIT_USAGE, LabError
from soakkit.figures import Interval


def write(
    path: Path,
    intervals: Sequence[Interval],
    step_ends_s: Sequence[float],
    settings: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """All of it, in place of what was there. `settings`: what is the same in all parts. LabError where it cannot be written."""
    said = {
        "settings": dict(settings),
        "intervals": [asdict(one) for one in intervals],
        "step_ends_s": [round(end, 5) for end in step_ends_s],
    }
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(said))
        partial.replace(path)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}", exit_code=EXIT_USAGE) from error


def begun(path: Path, settings: Mapping[str, float]) -> tuple[list[Interval], list[float]]:
    """What parts of a soak with these settings there are; nothing where there is none. LabError where they are of another one."""
    if not path.exists():
        return [], []
    found = read(path)
    said = settings_of(path)
    if found[0] and said != dict(settings):
        words = ", ".join(f"{name} {value:g}" for name, value in said.items()) or "nobody knows what"
        raise LabError(f"{path} was begun with {words}: go on with that, or forget it by --fresh", exit_code=EXIT_USAGE)
    return found


def settings_of(path: Path) -> dict[str, float]:
    """What it was begun with; {} where nothing says that."""
    return dict(json.loads(path.read_text()).get("settings") or {})


def read(path: Path) -> tuple[list[Interval], list[float]]:
    """Intervals and the ends of the steps, seconds. LabError where there is nothing, or nothing of a soak."""
    try:
        said = json.loads(path.read_text())
        return [Interval(**one) for one in said["intervals"]], [float(end) for end in said["step_ends_s"]]
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}", exit_code=EXIT_USAGE) from error
    except (ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} holds no figures of a soak", exit_code=EXIT_USAGE) from error
