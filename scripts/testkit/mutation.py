"""Mutants of the rooms that security rests on: one thing broken at a time in a copy, and the tests of that room, which must notice.

  scripts/mutants confine            all of a room; --sample 3: so many of each file, by --seed; --only TEXT: whose name holds it

Those that no test notices are named, and end it with 1; those that change nothing are named with the reason (equivalent.py).

Each mutant is tried by a fork of this process, which has imported what the tests import, without this project: with the tests of
those files in which a test enters the mutant's function, those first that enter it and that noticed others of it. What was found is
kept in mutants-out/ROOM.json: a mutant is tried again only if its file, or the tests that judged it, have changed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import struct
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from testkit import entered
from testkit.clones import IMPORTED, PASSED, Clone, cloned, ended, import_all
from testkit.equivalent import why_equivalent
from testkit.mutants import Mutant
from testkit.reached import Entered, First
from testkit.rooms import ROOMS, Room, digest_of

_FIRST = 8  # tests that are tried before all others
_NO_END = "a test did not end"


def reach(room: Room, clone: Clone) -> None:
    """Find which functions each test enters, for files of tests of which that is not known. RuntimeError where a test fails."""
    functions = room.functions()
    prefix, imported = clone.folder / IMPORTED, clone.folder / ".imported"
    (imported / "sitecustomize.py").symlink_to(Path(entered.__file__))
    (imported / "entered.json").write_text(json.dumps([(str(prefix / file), name) for file, name in functions]))
    (imported / "entered.marks").write_bytes(bytes(len(functions)))
    (imported / "entered.marks").chmod(0o666)
    names = [f"{file} {name}" for file, name in functions]
    for file, content in room.tests.items():
        digest = digest_of(content + repr(names).encode())
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

        if (code := ended(clone.fork([file], plugin, done), 900)) != PASSED:
            raise RuntimeError(f"{file} fails as it is ({code})")
        found = json.loads(left.read_text())
        room.known["modules"] = sorted({*room.known["modules"], *found.pop("modules")})
        room.known["reach"][file] = found | {"digest": digest}
        room.keep()
    room.known["reach"] = {file: room.known["reach"][file] for file in room.tests}


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
        code, said = ended(clone.fork(files, First(chosen, tell)), longest_s), ""
        with contextlib.suppress(BlockingIOError):
            said = os.read(told, 1 << 16).decode().partition("\n")[0]
    finally:
        os.close(tell)
        os.close(told)
        clone.write(mutant.file, whole, stamp + 1)
    return "" if code == PASSED else said or _NO_END


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
            import_all(clone, room.known["modules"], room.files)
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
    same = {one.name: why for one in chosen if (why := why_equivalent(one, room.files[one.file]))}
    with cloned() as clone:
        reach(room, clone)
    known = {one.name: room.verdict(one) for one in chosen}
    for mutant in chosen:
        if killer := known[mutant.name]:
            room.note(mutant, killer)
    asked = [one for one in chosen if known[one.name] is None and one.name not in same]
    lived = [one.name for one in chosen if known[one.name] == "" and one.name not in same]
    for name_of in lived:
        print(f"SURVIVES {name_of}", flush=True)
    for mutant, killer in try_all(room, asked, jobs):
        room.keep()
        print(f"{'noticed ' if killer else 'SURVIVES'} {mutant.name}{f' by {killer}' if killer else ''}", flush=True)
        lived += [] if killer else [mutant.name]
    for name_of, why in same.items():
        print(f"the same {name_of}: {why}")
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
