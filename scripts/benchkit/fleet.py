"""A fleet from objects to verdict: its hosts' windows are written into a store, and read and judged from there.

bytes         of an object, by rank and window
seconds       from the listing to the verdict, on all processors of this host, and of CPU; the exponent of their growth with ranks;
              of these the engine's: until it is gone after the verdict. It starts beside the listing and ends beside the judging
memory        the largest the command was, and each of its workers
faster        with several numbers of workers: how many times as fast as with the first, medians of the rounds
precision     accused ranks that are culprits; recall: culprits of which all ranks are accused, with their component, by scope; of a rack,
              a switch, a file system and a rail as one group, of a rail of the ranks that were read in full
others        the same of two other rules (other_rules.py), by ranks: of culprits whose functions take longer

    scripts/bench fleet --hosts 1250 12500 --keep DIR     the objects stay in DIR, and are not written again
    scripts/bench fleet --fleets mixed --hosts 12500      one of mixed (culprits of six scopes at once), rail, all, lengths, healthy
    scripts/bench fleet --fleets mixed --hosts 125000 --engine ray --workers 1 2 --rounds 3      whether two workers pay
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchkit.fleet_windows import KINDS, OF_FUNCTION, RANKS, SLOW_LINKS, STEPS, Plan, Planted, groups, plan, window_of
from benchkit.other_rules import eroica, median_mad
from labkit.machine.shell import module
from rankscope.diagnose.collector import paused
from rankscope.diagnose.infer.fleet.large import engines
from rankscope.diagnose.infer.fleet.large.isolated import isolate_children
from rankscope.diagnose.infer.fleet.sources import find
from rankscope.diagnose.infer.solve.large_fleet import diagnose_large
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.no_pandas import spare_pandas
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.container import encode
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store

SECONDS_PER_RANK = {1.5e5: 15 / 1e5, math.inf: 120 / 1e6}  # up to so many ranks
BYTES_PER_RANK, MEMORY = 8192, {1.5e5: 1.5e9, math.inf: 6e9}
PRECISION, RECALL, EXPONENT = 1.0, 0.98, 1.1
FASTER = 0.8  # of as many times as fast as there are workers
FLEETS = {
    "mixed": {"rank": 6, "host": 1, "rack": 1, "filesystem": 1, "link": 1, "switch": 1},
    "rail": {"rail": 1},
    "all": {"all": 1},
    "lengths": {"lengths": 1},
    "healthy": {},
}
_HEALTHY = "healthy"  # the baseline of "all"
_CHUNK = 100


@dataclass(frozen=True, slots=True)
class Judged:
    """One fleet from its objects to its verdict."""

    fleet: str
    ranks: int
    workers: int
    seconds: float
    engine_seconds: float  # of them waited for the engine's end
    cpu_seconds: float  # without Ray's own processes and its workers, which are nobody's children here
    memory_bytes: float
    object_bytes: float  # by rank
    found: dict[str, tuple[int, int]]  # by scope: culprits that were named, culprits
    right: int  # accused ranks that are culprits
    accused: int
    others: dict[str, tuple[int, int, int]]  # by rule: accused culprits, accused, culprits that patterns show
    note: str


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, nargs="*", default=[1250, 12_500], help="of 8 ranks")
    parser.add_argument("--fleets", nargs="*", choices=tuple(FLEETS), default=["mixed"])
    parser.add_argument("--noise", type=float, default=0.05, help="relative, of each rank, step and function")
    parser.add_argument("--seed", type=int, nargs="*", default=[1], help="a fleet for each")
    parser.add_argument("--engine", choices=engines.ENGINES, default="local")
    parser.add_argument("--workers", type=int, nargs="*", default=[len(os.sched_getaffinity(0))], help="each in turn")
    parser.add_argument(
        "--rounds", type=int, default=1, help="so often each fleet is judged with each number of workers"
    )
    parser.add_argument(
        "--brief", action="store_true", help="objects that are written in a fifth of the time, and are 5 %% larger"
    )
    parser.add_argument("--keep", type=Path, help="a folder in which the objects stay for the next time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # FLEET:HOSTS:SEED:FOLDER, in a process of its own
    parser.set_defaults(run=run, anywhere=True)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 when all targets are met."""
    if options.one:
        name, hosts, seed, folder = options.one.split(":", 3)
        print(json.dumps(asdict(_judge(name, int(hosts), int(seed), Path(folder), options.workers[0], options))))
        return 0
    print(
        f"{'fleet':<6} {'ranks':>8} {'workers':>7} "
        f"{'s':>6} {'engine':>6} {'CPU s':>6} {'GB':>5} {'KB/rank':>8} {'precision':>9}  recall by scope"
    )
    done = []
    with tempfile.TemporaryDirectory(prefix="rankscope-fleet-") as scratch:
        for name in options.fleets:
            for hosts in options.hosts:
                for seed in options.seed:
                    for each in _measured(name, hosts, seed, options.keep or Path(scratch), options):
                        done.append(each)
                        _print(each)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in done], indent=1))
    return _targets(done)


def _measured(name: str, hosts: int, seed: int, keep: Path, options: argparse.Namespace) -> Iterator[Judged]:
    folder = _folder(keep, name, hosts, seed, options)
    for each in (name, *([_HEALTHY] if name == "all" else [])):
        place = _folder(keep, each, hosts, seed, options)
        if not (place / "whole").exists():
            _write(_plan(each, hosts, seed, options), place, options.brief)
            (place / "whole").touch()
    for _ in range(options.rounds):
        for workers in options.workers:  # in turn: what else this host does meanwhile concerns all alike
            yield _apart(name, hosts, seed, folder, workers, options)


def _folder(keep: Path, name: str, hosts: int, seed: int, options: argparse.Namespace) -> Path:
    return keep / f"{name}-{hosts}-{options.noise:g}-{seed}"


def _plan(name: str, hosts: int, seed: int, options: argparse.Namespace) -> Plan:
    """Of more than 64 slow ranks the worst are examined (budgets.EXAMINED): here are fewer whose own time is too long."""
    return plan(hosts, options.noise, seed, FLEETS.get(name, {}))


# ---- writing ------------------------------------------------------------------------------------------------------------


def _write(fleet: Plan, folder: Path, brief: bool) -> None:
    """As the hosts would; each host's object for itself."""
    isolate_children()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        jobs = []
        for first in range(0, fleet.hosts, _CHUNK):
            part = fleet.of_hosts(first, min(first + _CHUNK, fleet.hosts))
            jobs.append(pool.submit(_write_part, part, first, fleet.hosts, folder.absolute().as_uri(), brief))
        for job in jobs:
            job.result()


def _write_part(part: Plan, first: int, hosts: int, uri: str, brief: bool) -> None:
    for place in range(part.hosts):
        window = window_of(part, place, first, hosts)
        objects.put(open_store(uri), key_of(window.manifest), encode([window], brief=brief))


# ---- judging ----------------------------------------------------------------------------------------------------------


def _apart(name: str, hosts: int, seed: int, folder: Path, workers: int, options: argparse.Namespace) -> Judged:
    command = module("benchkit", "fleet", "--one", f"{name}:{hosts}:{seed}:{folder}", "--engine", options.engine)
    command += ["--noise", str(options.noise), "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout)
    return Judged(**found)


def _judge(name: str, hosts: int, seed: int, folder: Path, workers: int, options: argparse.Namespace) -> Judged:
    spare_pandas()  # as the command does
    begun = time.monotonic()
    with engines.beginning(options.engine, workers), paused():
        found = find([folder])
        baseline = find([_folder(folder.parent, _HEALTHY, hosts, seed, options)]).chosen if name == "all" else ()
        shared = groups(hosts)
        with engines.started(options.engine, workers) as pool:
            [(_, verdict)] = diagnose_large(found, None, pool, shared, baseline)
            judged = time.monotonic()
    ended = time.monotonic()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    fleet = _plan(name, hosts, seed, options)
    planted = fleet.planted
    guilty = {rank for each in planted for rank in each.ranks}
    accused = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    by_scope: dict[str, list[bool]] = {}
    for each in planted:
        by_scope.setdefault(each.scope, []).append(is_named(each, verdict.suspects))
    ranks = hosts * RANKS
    return Judged(
        fleet=name,
        ranks=ranks,
        workers=workers,
        seconds=ended - begun,
        engine_seconds=ended - judged,
        cpu_seconds=sum(each.ru_utime + each.ru_stime for each in used),
        memory_bytes=1024.0 * (used[0].ru_maxrss + workers * used[1].ru_maxrss),
        object_bytes=sum(path.stat().st_size for path in folder.rglob("*.parquet")) / ranks,
        found={scope: (sum(named), len(named)) for scope, named in by_scope.items()},
        right=len(accused & guilty),
        accused=len(accused),
        others=_by_other_rules(fleet, seed),
        note=verdict.notes[-1].text,
    )


def _by_other_rules(fleet: Plan, seed: int) -> dict[str, tuple[int, int, int]]:
    own = KINDS.index("collective") != OF_FUNCTION
    seconds = fleet.seconds[:, own]
    beta = seconds * (STEPS / float(fleet.total.sum()))
    shown = {rank for each in fleet.planted if each.scope not in (*SLOW_LINKS, "all", "lengths") for rank in each.ranks}
    rules = {"EROICA": eroica(beta, seed), "median+MAD": median_mad(seconds, beta)}
    return {rule: (len(found & shown), len(found), len(shown)) for rule, found in rules.items()}


def is_named(planted: Planted, suspects: tuple[Suspect, ...]) -> bool:
    """Whether it is accused with its component, and all of its ranks; a group by its name, all as all."""
    mine = [each for each in suspects if each.component == planted.component]
    if planted.scope in ("rail", "all", "lengths"):
        scope = {"rail": "group"}.get(planted.scope, "all")
        mine = [each for each in mine if each.scope == scope and (scope == "all" or planted.name in each.action)]
        return len(mine) == 1 and set(mine[0].ranks) <= set(planted.ranks)
    if planted.name:
        mine = [each for each in mine if each.scope == "group" and planted.name in each.action]
    return set(planted.ranks) <= {rank for each in mine for rank in each.ranks}


# ---- the table --------------------------------------------------------------------------------------------------------


def _print(each: Judged) -> None:
    scopes = ", ".join(f"{scope} {named}/{count}" for scope, (named, count) in each.found.items())
    precision = each.right / each.accused if each.accused else float("nan")
    print(
        f"{each.fleet:<6} {each.ranks:>8} {each.workers:>7} {each.seconds:>6.1f} "
        f"{each.engine_seconds:>6.1f} {each.cpu_seconds:>6.1f} {each.memory_bytes / 1e9:>5.2f} "
        f"{each.object_bytes / 1024:>8.2f} {precision:>9.3f}  {scopes}\n{'':<16}{each.note}",
        flush=True,
    )
    for rule, (right, named, there) in each.others.items():
        print(f"{'':<16}{rule}: {right} of {there} culprits among {named} ranks accused", flush=True)


def _faster(done: Sequence[Judged]) -> Iterator[tuple[int, int, float]]:
    """The first number of workers, another one, and how many times as fast that is: medians, of one number of ranks."""
    first, *others = dict.fromkeys(each.workers for each in done)
    usual = {
        count: float(np.median([each.seconds for each in done if each.workers == count])) for count in (first, *others)
    }
    yield from ((first, count, usual[first] / usual[count]) for count in others)


def _targets(done: list[Judged]) -> int:
    rows: list[tuple[str, float, str, float]] = []
    for ranks in sorted({each.ranks for each in done}):
        here = [each for each in done if each.ranks == ranks]
        if ranks >= 1e5:
            seconds = next(value for most, value in SECONDS_PER_RANK.items() if ranks <= most) * ranks
            rows.append((f"{ranks} ranks, s", max(each.seconds for each in here), "<=", seconds))
        memory = next(value for most, value in MEMORY.items() if ranks <= most)
        rows.append((f"{ranks} ranks, GB", max(each.memory_bytes for each in here) / 1e9, "<=", memory / 1e9))
        rows.append((f"{ranks} ranks, bytes per rank", max(each.object_bytes for each in here), "<=", BYTES_PER_RANK))
        right, accused = sum(each.right for each in here), sum(each.accused for each in here)
        rows.append((f"{ranks} ranks, precision", right / accused if accused else 1.0, ">=", PRECISION))
        for scope in dict.fromkeys(scope for each in here for scope in each.found):
            pairs = [each.found[scope] for each in here if scope in each.found]
            recall = sum(named for named, _ in pairs) / sum(count for _, count in pairs)
            rows.append((f"{ranks} ranks, recall of {scope}", recall, ">=", RECALL))
        rows += [
            (f"{ranks} ranks, faster with {workers}", faster, ">=", FASTER * workers / first)
            for first, workers, faster in _faster(here)
        ]
    if len({each.ranks for each in done}) > 1:
        exponent = np.polyfit(np.log([each.ranks for each in done]), np.log([each.seconds for each in done]), 1)[0]
        rows.append(("exponent of seconds in ranks", float(exponent), "<=", EXPONENT))
    met = True
    print()
    for what, value, sign, target in rows:
        good = value >= target if sign == ">=" else value <= target
        met &= good
        print(f"{what:<36} {value:>9.3f}   target {sign} {target:<7g} {'met' if good else 'MISSED'}")
    return 0 if met else 1
