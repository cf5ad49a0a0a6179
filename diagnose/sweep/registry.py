"""Find all checks: every module in `rankscope.diagnose.sweep.checks` is one, so a new check is a new file.

A check module has: a docstring (printed by `--explain`; its first line by `--list`), `ID`,
`SETTINGS` (its thresholds with their defaults) and `run(context)`, which yields Findings or raises
NotApplicable or Unreadable. `PER_PROCESS = True`: its instances are processes, too many to be
Prometheus labels."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rankscope.diagnose.sweep import checks as package
from rankscope.diagnose.sweep.context import Context, Setting
from rankscope.diagnose.sweep.finding import Finding


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `settings` are its defaults, `title` and `explanation` its module's docstring."""

    id: str
    title: str
    explanation: str
    settings: Mapping[str, Setting]
    run: Callable[[Context], Iterable[Finding]]
    per_process: bool = False


def all_checks() -> tuple[Check, ...]:
    """Load every check, sorted by id."""
    found = []
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        if not hasattr(module, "ID"):
            continue
        explanation = inspect.cleandoc(module.__doc__ or "")
        found.append(
            Check(
                id=module.ID,
                title=explanation.partition("\n")[0],
                explanation=explanation,
                settings=getattr(module, "SETTINGS", {}),
                run=module.run,
                per_process=getattr(module, "PER_PROCESS", False),
            )
        )
    return tuple(sorted(found, key=lambda check: check.id))
