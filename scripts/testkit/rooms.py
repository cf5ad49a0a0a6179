"""The rooms that security rests on, the tests that guard them, and what earlier runs found of their mutants."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from testkit.clones import REPOSITORY, imports_of
from testkit.mutants import MODULE, Mutant, functions_of, mutants_of

KEPT = REPOSITORY / "mutants-out"


@dataclass(frozen=True, slots=True)
class Guarded:
    """`files` that are mutated and the `tests` that are to notice; `some` of the files that the `quick` ones notice all of."""

    files: str
    tests: tuple[str, ...]
    some: tuple[str, ...]
    quick: tuple[str, ...]


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


_APART = _tests(
    "unit/observer", "hands_nothing_over", "writes_nothing", "apart_limits", "apart_ends", "apart", "devices_opened"
)
ROOMS = {
    "confine": Guarded(
        "probes/confine/*.py",
        (*_tests("unit/probes", "confined"), *_APART, *_tests("kernel", "opens_gpus")),
        ("probes/confine/calls.py", "probes/confine/seccomp.py"),
        (*_tests("unit/probes", "confined"), *_tests("unit/observer", "writes_nothing")),
    ),
    "apart": Guarded(
        "observer/apart/*.py",
        (*_APART, *_tests("unit/observer", "look", "messages", "hostile_requests", "border", "services", "shares"),
         *_tests("unit/diagnose/watch", "watchdog"), *_tests("unit/probes", "shared_libraries"),
         *_tests("kernel", "least_rights", "opens_gpus")),
        ("observer/apart/broker.py", "observer/apart/reading.py"),
        _tests("unit/observer", "services", "apart_limits", "apart"),
    ),
    "log": Guarded(
        "probes/host/kmsg.py",
        (*_tests("unit/probes", "kernel_log"), *_tests("unit/sweep", "kernel_events", "host_checks", "sweeping", "gpu_checks")),
        ("probes/host/kmsg.py",),
        (*_tests("unit/probes", "kernel_log"), *_tests("unit/sweep", "kernel_events")),
    ),
    "sweep": Guarded(
        "diagnose/sweep/**/*.py",
        _tests("unit/sweep", "*"),
        tuple(f"diagnose/sweep/checks/{name}.py" for name in ("cpu_governor", "cpu_steal", "disk_slow", "os_clock_sync", "os_limits")),
        _tests("unit/sweep", "check_details"),
    ),
}  # fmt: skip


@dataclass(slots=True)
class Room:
    """Its files, mutants and tests, and what is known of them."""

    name: str
    files: dict[str, bytes]
    tests: dict[str, bytes]
    known: dict[str, Any]
    most_s: float = math.inf  # so long a mutant's tests may take; a survivor of some of them is not kept as one
    killed: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # how often a test noticed one of a function, or of a file

    @staticmethod
    def read(name: str, quick: bool = False) -> Room:
        """From this clone, and from what earlier runs left."""
        guarded = ROOMS[name]
        files = _files(guarded.some if quick else (guarded.files,))
        tests = _files(guarded.quick if quick else guarded.tests)
        name = f"{name}-quick" if quick else name
        known = {"reach": {}, "mutants": {}, "modules": []}
        with contextlib.suppress(OSError, ValueError):
            known |= json.loads((KEPT / f"{name}.json").read_text())
        return Room(name, files, tests, known)

    def keep(self) -> None:
        """Write what is known."""
        KEPT.mkdir(exist_ok=True)
        file = KEPT / f"{self.name}.json"
        file.with_suffix(".new").write_text(json.dumps(self.known))
        file.with_suffix(".new").replace(file)

    def mutants(self) -> list[Mutant]:
        """All of them."""
        return [one for file, whole in self.files.items() for one in mutants_of(file, whole.decode())]

    def functions(self) -> list[tuple[str, str]]:
        """File and name of each function, in an order that stays while they do."""
        return [(file, one) for file, whole in self.files.items() for one in sorted(functions_of(whole.decode()))]

    def verdict(self, mutant: Mutant) -> str | None:
        """The test that noticed it, "" if none did; None if that is not known or was of other files."""
        content, killer, judges = self.known["mutants"].get(mutant.name, ("", "", ""))
        if content != self._content(mutant) or judges != self._judges(killer):
            return None
        return str(killer)

    def note(self, mutant: Mutant, killer: str) -> None:
        """Keep which test noticed a mutant."""
        if not killer and self.most_s < math.inf:
            return
        self.known["mutants"][mutant.name] = (self._content(mutant), killer, self._judges(killer))
        self.killed.update([(mutant.file, killer), (f"{mutant.file} {mutant.function}", killer)])

    def _content(self, mutant: Mutant) -> str:
        return digest_of(mutant.applied(self.files[mutant.file]))

    def _judges(self, killer: str) -> str:
        """Of the test that noticed it; where none did, of all that could."""
        file, _, name = killer.partition("::")
        return digest_of(_function(self.tests[file], name.partition("[")[0]) if name else repr(self.tests).encode())

    def judges(self, mutant: Mutant) -> list[str]:
        """The tests that may notice it, the first to be run first: those that enter its function, or files that use it; else all."""
        tests = {name: reach for reach in self.known["reach"].values() for name, reach in reach["tests"].items()}
        at = f"{mutant.file} {mutant.function}"
        module = ".".join(("rankscope", *Path(mutant.file).with_suffix("").parts))
        users = {
            file for file, whole in self.files.items() if file == mutant.file or module in imports_of(whole.decode())
        }

        def enters(name: str) -> bool:
            if mutant.function == MODULE:
                # A test that enters nothing may read a table.
                return not tests[name][1] or any(_file(one) in users for one in tests[name][1])
            return at in tests[name][1]

        def rank(name: str) -> tuple[object, ...]:
            seconds, functions = tests[name]
            return -self.killed[at, name], -self.killed[mutant.file, name], seconds + len(functions) / 100

        ordered = sorted(filter(enters, tests), key=rank) or sorted(tests, key=rank)
        return [
            name
            for name, until in zip(ordered, accumulate(tests[one][0] for one in ordered), strict=True)
            if until <= self.most_s
        ]

    def seconds(self, names: Collection[str]) -> float:
        """How long these tests take."""
        return sum(
            took
            for reach in self.known["reach"].values()
            for name, (took, _) in reach["tests"].items()
            if name in names
        )


def _files(patterns: Sequence[str]) -> dict[str, bytes]:
    paths = [path for pattern in patterns for path in sorted(REPOSITORY.glob(pattern))]
    return {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in paths}


@functools.lru_cache(maxsize=1 << 12)
def _function(content: bytes, name: str) -> bytes:
    """A function of a file of tests as it is written; b"" where there is none of that name."""
    text = content.decode()
    functions = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}
    return (ast.get_source_segment(text, functions[name]) or "").encode() if name in functions else b""


def _file(function: str) -> str:
    return function.rpartition(" ")[0]


def digest_of(content: bytes) -> str:
    """A short one."""
    return hashlib.sha256(content).hexdigest()[:16]
