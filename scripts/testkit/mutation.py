"""Mutants of the rooms that security rests on: one thing broken at a time in a copy, and the tests of that room, which must notice.

  scripts/mutants confine            all of a room; --sample 3: so many of each file, by --seed; --only TEXT: whose name holds it

Those that no test notices are named, and end it with 1; those that change nothing are named with the reason (equivalent.py).

Each mutant is tried by a fork of this process, which has imported what the tests import, without this project: with the tests of
those files in which a test enters the mutant's function, those first that enter it and that noticed others of it. What was found is
kept in mutants-out/ROOM.json: a mutant is tried again only if its file, or the tests that judged it, have changed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import importlib
import json
import math
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from testkit import entered
from testkit.equivalent import EQUIVALENT
from testkit.mutants import MODULE, Mutant, functions_of, mutants_of
from testkit.reached import Entered, First

REPOSITORY = Path(__file__).resolve().parents[2]
_PACKAGES = ("probes", "observer", "unwinder", "diagnose")
_KEPT = REPOSITORY / "mutants-out"
_IMPORTED = ".imported/rankscope"
_FIRST = 8  # tests that are tried before all others
_NO_END = "a test did not end"


@dataclass(frozen=True, slots=True)
class Guarded:
    """`files` that are mutated and the `tests` that are to notice; `some` of the files that the `quick` ones notice all of."""

    files: str
    tests: tuple[str, ...]
    some: tuple[str, ...]
    quick: tuple[str, ...]


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


_APART = _tests("unit/observer", "hands_nothing_over", "writes_nothing", "apart_limits", "apart")
ROOMS = {
    "confine": Guarded(
        "probes/confine/*.py",
        (*_tests("unit/probes", "confined"), *_APART, *_tests("kernel", "opens_gpus")),
        ("probes/confine/calls.py", "probes/confine/seccomp.py"),
        _tests("unit/probes", "confined"),
    ),
    "apart": Guarded(
        "observer/apart/*.py",
        (*_APART, *_tests("unit/observer", "look", "hostile_requests", "services", "shares"),
         *_tests("unit/diagnose/watch", "watchdog"), *_tests("unit/probes", "shared_libraries"),
         *_tests("kernel", "least_rights", "opens_gpus")),
        ("observer/apart/broker.py", "observer/apart/reading.py"),
        _tests("unit/observer", "services", "apart_limits"),
    ),
    "log": Guarded(
        "probes/host/kmsg.py",
        _tests("unit/sweep", "kernel_events", "host_checks", "sweeping", "gpu_checks"),
        ("probes/host/kmsg.py",),
        _tests("unit/sweep", "kernel_events"),
    ),
    "sweep": Guarded(
        "diagnose/sweep/**/*.py",
        _tests("unit/sweep", "*"),
        ("diagnose/sweep/checks/cpu_*.py", "diagnose/sweep/checks/disk_slow.py", "diagnose/sweep/checks/os_*.py"),
        _tests("unit/sweep", "check_details"),
    ),
}  # fmt: skip


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
        (folder / _IMPORTED).mkdir(parents=True)
        for package in _PACKAGES:
            (folder / _IMPORTED / package).symlink_to(folder / package)
        return Clone(folder)

    def write(self, file: str, content: bytes, stamp: int) -> None:
        """`stamp`, another one for each content: compiled code is known by its file's time in seconds and its length."""
        (self.folder / file).write_bytes(content)
        os.utime(self.folder / file, (stamp, stamp))

    def fork(self, tests: Sequence[str], plugin: object, done: Callable[[], None] = lambda: None) -> int:
        """Run tests in a process group of its own: its pid. `done` is called there when they have ended."""
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
            code = int(pytest.main(options, plugins=[plugin]))
            done()
        finally:
            os._exit(code)


@dataclass(slots=True)
class Room:
    """Its files, mutants and tests, and what is known of them."""

    name: str
    files: dict[str, bytes]
    tests: dict[str, str]  # digests, by file
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
            known |= json.loads((_KEPT / f"{name}.json").read_text())
        return Room(name, files, {file: _digest(content) for file, content in tests.items()}, known)

    def keep(self) -> None:
        """Write what is known."""
        _KEPT.mkdir(exist_ok=True)
        file = _KEPT / f"{self.name}.json"
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
        return _digest(mutant.applied(self.files[mutant.file]))

    def _judges(self, killer: str) -> str:
        return self.tests.get(killer.partition("::")[0], _digest(repr(self.tests).encode()))

    def judges(self, mutant: Mutant) -> list[str]:
        """The tests that may notice it, the first to be run first: those that enter its function, or files that use it; else all."""
        tests = {name: reach for reach in self.known["reach"].values() for name, reach in reach["tests"].items()}
        at = f"{mutant.file} {mutant.function}"
        module = ".".join(("rankscope", *Path(mutant.file).with_suffix("").parts))
        users = {
            file for file, whole in self.files.items() if file == mutant.file or module in _imports(whole.decode())
        }

        def enters(name: str) -> bool:
            if mutant.function == MODULE:
                return any(_file(one) in users for one in tests[name][1])
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


def _file(function: str) -> str:
    return function.rpartition(" ")[0]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _ended(pid: int, longest_s: float) -> int | None:
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


def reach(room: Room, clone: Clone) -> None:
    """Find which functions each test enters, for files of tests of which that is not known. RuntimeError where a test fails."""
    functions = room.functions()
    prefix, imported = clone.folder / _IMPORTED, clone.folder / ".imported"
    (imported / "sitecustomize.py").symlink_to(Path(entered.__file__))
    (imported / "entered.json").write_text(json.dumps([(str(prefix / file), name) for file, name in functions]))
    (imported / "entered.marks").write_bytes(bytes(len(functions)))
    (imported / "entered.marks").chmod(0o666)
    names = [f"{file} {name}" for file, name in functions]
    for file, content in room.tests.items():
        digest = _digest((content + repr(names)).encode())
        if room.known["reach"].get(file, {}).get("digest") == digest:
            continue
        plugin, left = Entered(imported), clone.folder / "left.json"

        def done(plugin: Entered = plugin, left: Path = left) -> None:
            sys.settrace(None)
            tests = {one: (seconds, [names[at] for at in places]) for one, (seconds, places) in plugin.tests.items()}
            everywhere = {name for _, some in tests.values() for name in some} | {names[at] for at in plugin.imported}
            modules = sorted(
                one for one, module in sys.modules.items() if "/lib/python" in str(getattr(module, "__file__", ""))
            )
            left.write_text(json.dumps({"tests": tests, "entered": sorted(everywhere), "modules": modules}))

        if (code := _ended(clone.fork([file], plugin, done), 900)) != 0:
            raise RuntimeError(f"{file} fails as it is ({code})")
        found = json.loads(left.read_text())
        room.known["modules"] = sorted({*room.known["modules"], *found.pop("modules")})
        room.known["reach"][file] = found | {"digest": digest}
        room.keep()
    room.known["reach"] = {file: room.known["reach"][file] for file in room.tests}


def _import_all(room: Room, clone: Clone) -> None:
    """What its tests import, but for the room and what imports it: forks begin with that."""
    sys.path.insert(0, str(clone.folder / ".imported"))
    imported = {name: _imports(path.read_text()) for name, path in _modules(clone.folder).items()}
    broken = {
        name for name, path in _modules(clone.folder).items() if str(path.relative_to(clone.folder)) in room.files
    }
    while more := {name for name, others in imported.items() if name not in broken and others & broken}:
        broken |= more
    for one in room.known["modules"]:
        if one not in broken:
            with contextlib.suppress(Exception):
                importlib.import_module(one)


def _modules(folder: Path) -> dict[str, Path]:
    found = [path for package in _PACKAGES for path in (folder / package).rglob("*.py")]
    return {".".join(("rankscope", *path.relative_to(folder).with_suffix("").parts)): path for path in found}


@functools.cache
def _imports(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _tried(room: Room, clone: Clone, mutant: Mutant, stamp: int) -> str:
    """The test that notices a mutant, "" if none does."""
    ordered = room.judges(mutant)
    whole = room.files[mutant.file]
    for chosen in filter(None, (ordered[:_FIRST], ordered[_FIRST:])):
        tests = sorted({one.partition("::")[0] for one in chosen})
        if killer := noticed_by(clone, mutant, whole, tests, stamp, chosen, 120 + 10 * room.seconds(chosen)):
            return killer
    return ""


def noticed_by(
    clone: Clone,
    mutant: Mutant,
    whole: bytes,
    files: Sequence[str],
    stamp: int,
    chosen: Sequence[str] = (),
    longest_s: float = 300,
) -> str:
    """The test of some files, or of those `chosen` in their order, that notices a mutant of a file; "" if none does."""
    told, tell = os.pipe()
    os.set_blocking(told, False)  # what outlives the tests holds it open
    clone.write(mutant.file, mutant.applied(whole), stamp)
    try:
        code, said = _ended(clone.fork(files, First(chosen, tell)), longest_s), ""
        with contextlib.suppress(BlockingIOError):
            said = os.read(told, 1 << 16).decode().partition("\n")[0]
    finally:
        os.close(tell)
        os.close(told)
        clone.write(mutant.file, whole, stamp + 1)
    return "" if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else said or _NO_END


def try_all(room: Room, mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Each with the test that notices it, "" if none does, as they end. So many processes take the next one each, and have a clone."""
    waiting, wait = os.pipe()
    told, tell = os.pipe()
    workers = [_work(room, mutants, waiting, tell, (wait, told)) for _ in range(min(jobs, len(mutants)))]
    os.close(tell)
    os.close(waiting)
    with os.fdopen(wait, "wb") as file:
        file.writelines(struct.pack("<I", place) for place in range(len(mutants)))
    with os.fdopen(told) as lines:
        for line in lines:
            place, killer = json.loads(line)
            room.note(mutants[place], killer)
            yield mutants[place], killer
    if sum(os.waitpid(pid, 0)[1] for pid in workers):
        raise RuntimeError("not all were tried")


def _work(room: Room, mutants: Sequence[Mutant], waiting: int, tell: int, others: Sequence[int]) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        for one in others:
            os.close(one)
        with cloned() as clone:
            _import_all(room, clone)
            while place := os.read(waiting, 4):
                (at,) = struct.unpack("<I", place)
                killer = _tried(room, clone, mutants[at], 1_000_000_000 + 2 * at)
                room.note(mutants[at], killer)
                os.write(tell, f"{json.dumps((at, killer))}\n".encode())
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextlib.contextmanager
def cloned() -> Iterator[Clone]:
    """A copy that goes when it is done with."""
    with tempfile.TemporaryDirectory(prefix="rankscope-mutants-") as folder:
        Path(folder).chmod(0o755)
        yield Clone.made(Path(folder))


def _drawn(mutants: Sequence[Mutant], of_a_file: int, seed: str) -> list[Mutant]:
    """So many of each file: the same ones for the same seed, however many others there are in other files."""
    found = []
    for file in dict.fromkeys(one.file for one in mutants):
        some = [one for one in mutants if one.file == file]
        found += random.Random(f"{seed} {file}").sample(some, min(of_a_file, len(some)))
    return found


def survivors(
    name: str,
    sample: int = 0,
    only: str = "",
    seed: str = "",
    jobs: int = 1,
    most_s: float = math.inf,
    quick: bool = False,
) -> list[str]:
    """Those that the tests of a room do not notice. `quick`: of some files, by quick tests. RuntimeError where tests fail as it is."""
    room = Room.read(name, quick)
    room.most_s = most_s
    chosen = [one for one in room.mutants() if only in one.name]
    if sample:
        chosen = _drawn(chosen, sample, seed)
    same = [one for one in chosen if one.lasting_name in EQUIVALENT]
    with cloned() as clone:
        reach(room, clone)
    known = {one.name: room.verdict(one) for one in chosen}
    for mutant in chosen:
        if killer := known[mutant.name]:
            room.note(mutant, killer)
    asked = [one for one in chosen if known[one.name] is None and one not in same]
    lived = [one.name for one in chosen if known[one.name] == "" and one not in same]
    for name_of in lived:
        print(f"SURVIVES {name_of}", flush=True)
    for mutant, killer in try_all(room, asked, jobs):
        room.keep()
        print(f"{'noticed ' if killer else 'SURVIVES'} {mutant.name}{f' by {killer}' if killer else ''}", flush=True)
        lived += [] if killer else [mutant.name]
    for one in same:
        print(f"the same {one.name}: {EQUIVALENT[one.lasting_name]}")
    noticed = len(chosen) - len(same) - len(lived)
    print(
        f"{name}: {len(chosen)} mutants, {noticed} noticed, {len(same)} the same as before, {len(lived)} survive",
        flush=True,
    )
    return lived


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--sample", type=int, default=0, help="so many of each file")
    parser.add_argument("--seed", default="", help="of the sample: another one is another sample")
    parser.add_argument("--only", default="", help="those whose name holds this")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument(
        "--most-s", type=float, default=math.inf, help="so long the tests of a mutant may take: a first look"
    )
    asked = parser.parse_args()
    if unknown := set(asked.rooms) - set(ROOMS):
        parser.error(f"no such room: {', '.join(sorted(unknown))}")
    lived = [
        one
        for room in asked.rooms or ROOMS
        for one in survivors(room, asked.sample, asked.only, asked.seed, asked.jobs, asked.most_s)
    ]
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
