"""A fleet from objects to verdict: its hosts' windows are written into a store, and read and judged from there.

bytes         of an object, by rank and window
seconds       from the listing to the verdict, on all processors of this host; the exponent of their growth with ranks
memory        the largest the command was, and each of its workers
precision     accused ranks that are culprits; recall: culprits of which all ranks are accused, with their component; by scope

    scripts/bench fleet --hosts 1250 12500 --keep DIR     the objects stay in DIR, and are not written again
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchkit import fleet_windows
from benchkit.fleet_windows import Plan, Planted, plan, window_of
from rankscope.diagnose.fleet.large import engines
from rankscope.diagnose.fleet.sources import find
from rankscope.diagnose.solve.large_fleet import diagnose_large
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.container import encode
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store

SECONDS_PER_RANK = {1.5e5: 15 / 1e5, math.inf: 120 / 1e6}  # up to so many ranks
BYTES_PER_RANK, MEMORY = 8192, {1.5e5: 1.5e9, math.inf: 6e9}
PRECISION, RECALL, EXPONENT = 1.0, 0.98, 1.1
_CHUNK = 100


@dataclass(frozen=True, slots=True)
class Judged:
    """One fleet from its objects to its verdict."""

    ranks: int
    seconds: float
    memory_bytes: float
    object_bytes: float  # by rank
    found: dict[str, tuple[int, int]]  # by scope: culprits that were named, culprits
    right: int  # accused ranks that are culprits
    accused: int
    note: str


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, nargs="*", default=[1250, 12_500], help="of 8 ranks")
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=engines.ENGINES, default="local")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="a folder in which the objects stay for the next time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # HOSTS:FOLDER, in a process of its own
    parser.set_defaults(run=run, anywhere=True)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 when all targets are met."""
    if options.one:
        hosts, _, folder = options.one.partition(":")
        print(json.dumps(asdict(_judge(int(hosts), Path(folder), options))))
        return 0
    print(f"{'ranks':>8} {'s':>6} {'GB':>5} {'KB/rank':>8} {'precision':>9}  recall by scope")
    done = []
    with tempfile.TemporaryDirectory(prefix="rankscope-fleet-") as scratch:
        for hosts in options.hosts:
            folder = (options.keep or Path(scratch)) / f"{hosts}-{options.noise:g}-{options.seed}"
            if not (folder / "whole").exists():
                _write(_plan(hosts, options), folder)
                (folder / "whole").touch()
            done.append(_apart(hosts, folder, options))
            _print(done[-1])
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in done], indent=1))
    return _targets(done)


def _plan(hosts: int, options: argparse.Namespace) -> Plan:
    """Of more than 64 slow ranks the worst are examined (limits.SUSPECTS_EXAMINED): here are fewer."""
    count = min(max(2, round(math.sqrt(hosts * fleet_windows.RANKS) / 8)), 16)
    return plan(hosts, options.noise, options.seed, {"rank": count, "host": 1, "rack": 1})


# ---- writing ------------------------------------------------------------------------------------------------------------


def _write(fleet: Plan, folder: Path) -> None:
    """As the hosts would; each host's object for itself."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        jobs = []
        for first in range(0, fleet.hosts, _CHUNK):
            part = fleet.of_hosts(first, min(first + _CHUNK, fleet.hosts))
            jobs.append(pool.submit(_write_part, part, first, fleet.hosts, folder.absolute().as_uri()))
        for job in jobs:
            job.result()


def _write_part(part: Plan, first: int, hosts: int, uri: str) -> None:
    for place in range(part.hosts):
        window = window_of(part, place, first, hosts)
        objects.put(open_store(uri), key_of(window.manifest), encode([window]))


# ---- judging ----------------------------------------------------------------------------------------------------------


def _apart(hosts: int, folder: Path, options: argparse.Namespace) -> Judged:
    command = [sys.executable, "-m", "benchkit", "fleet", "--one", f"{hosts}:{folder}", "--engine", options.engine,
               "--noise", str(options.noise), "--seed", str(options.seed)]  # fmt: skip
    command += ["--workers", str(options.workers)] if options.workers else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout)
    found["found"] = {scope: tuple(pair) for scope, pair in found["found"].items()}
    return Judged(**found)


def _judge(hosts: int, folder: Path, options: argparse.Namespace) -> Judged:
    workers = options.workers or len(os.sched_getaffinity(0))
    begun = time.monotonic()
    found = find([folder])
    with engines.started(options.engine, workers) as pool:
        [(_, verdict)] = diagnose_large(found, None, pool, fleet_windows.racks(hosts))
    took = time.monotonic() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    memory += workers * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0
    planted = _plan(hosts, options).planted
    guilty = {rank for each in planted for rank in each.ranks}
    accused = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    by_scope: dict[str, list[bool]] = {}
    for each in planted:
        by_scope.setdefault(each.scope, []).append(_named(each, verdict.suspects))
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet")) / (hosts * fleet_windows.RANKS)
    scopes = {scope: (sum(named), len(named)) for scope, named in by_scope.items()}
    ranks = hosts * fleet_windows.RANKS
    return Judged(ranks, took, memory, size, scopes, len(accused & guilty), len(accused), verdict.notes[-1].text)


def _named(planted: Planted, suspects: tuple[Suspect, ...]) -> bool:
    """Whether all of its ranks are accused, and of its component; of a rack, as one group."""
    if planted.scope == "rack":
        suspects = tuple(each for each in suspects if each.scope == "group")
    accused = {rank for suspect in suspects if suspect.component == planted.component for rank in suspect.ranks}
    return set(planted.ranks) <= accused


# ---- the table --------------------------------------------------------------------------------------------------------


def _print(each: Judged) -> None:
    scopes = ", ".join(f"{scope} {named}/{count}" for scope, (named, count) in each.found.items())
    precision = each.right / each.accused if each.accused else float("nan")
    print(
        f"{each.ranks:>8} {each.seconds:>6.1f} {each.memory_bytes / 1e9:>5.2f} {each.object_bytes / 1024:>8.2f} {precision:>9.3f}  {scopes}"
        f"\n         {each.note}",
        flush=True,
    )


def _targets(done: list[Judged]) -> int:
    rows: list[tuple[str, float, str, float]] = []
    for each in done:
        ranks = each.ranks
        seconds = next(value for most, value in SECONDS_PER_RANK.items() if ranks <= most) * ranks
        memory = next(value for most, value in MEMORY.items() if ranks <= most)
        if ranks >= 1e5:
            rows.append((f"{ranks} ranks, s", each.seconds, "<=", seconds))
        rows.append((f"{ranks} ranks, GB", each.memory_bytes / 1e9, "<=", memory / 1e9))
        rows.append((f"{ranks} ranks, bytes per rank", each.object_bytes, "<=", BYTES_PER_RANK))
        rows.append((f"{ranks} ranks, precision", each.right / max(each.accused, 1), ">=", PRECISION))
        rows += [
            (f"{ranks} ranks, recall of {scope}", named / count, ">=", RECALL)
            for scope, (named, count) in each.found.items()
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
