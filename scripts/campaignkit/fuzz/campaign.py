"""The campaign of scripts/fuzz: targets up to a number of inputs each, and what these reach."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from campaignkit import sources
from campaignkit.campaign import Judged, Keep
from campaignkit.fuzz import counted, reach
from campaignkit.fuzz.forks import each_in_a_fork
from campaignkit.fuzz.reach import BY_NAME
from campaignkit.fuzz.watch import MOST_BYTES, MOST_S
from campaignkit.reached import Modules, Part
from campaignkit.results import LOCAL, Result, today
from labkit.machine.shell import REPOSITORY, LabError, module

REGRESSIONS = REPOSITORY / "tests/data/fuzz"
EXIT_BROKEN = 70


class Fuzz:
    """Each case is a parser of bytes that somebody else wrote (`targets/`)."""

    name = "fuzz"
    lacking_code = 0
    epilog = f"""Each target is a parser of bytes that somebody else wrote. An input fails that makes it raise anything but what it
documents, take more than {MOST_S:g} s of the processor, or {MOST_BYTES >> 20} MB of memory. It is written into tests/data/fuzz, where
the tests find it from then on. It runs at idle priority. Ends with 69 where the fuzzer (atheris) is not made for this Python, 70 where
the fuzzer itself broke.
"""

    def cases(self) -> Mapping[str, str]:
        """All targets."""
        return {name: target.what for name, target in BY_NAME.items()}

    def options(self, parser: argparse.ArgumentParser) -> None:
        """How much is run, and where."""
        parser.add_argument(
            "--inputs", type=int, default=1_000_000, help="of each target, with earlier runs (default 1000000)"
        )
        parser.add_argument(
            "--seconds", type=float, default=600.0, help="of the processor, for each target in this run (default 600)"
        )
        parser.add_argument("--jobs", type=int, default=1, help="targets at a time (default 1)")
        parser.add_argument(
            "--state", type=Path, default=LOCAL / "fuzz", help="where corpora are kept (default campaign-out/fuzz)"
        )
        parser.add_argument(
            "--crashes",
            type=Path,
            default=REGRESSIONS,
            help="where inputs that fail are written (default tests/data/fuzz)",
        )

    def wanted(self, args: argparse.Namespace) -> float:
        """Inputs of each target."""
        return float(args.inputs)

    def sources(self, cases: Sequence[str]) -> Mapping[str, str]:
        """Digest of what each target reaches."""
        return {name: sources.digest(parts) for name, parts in parts_of(cases).items()}

    def run(self, left: Mapping[str, float], digests: Mapping[str, str], args: argparse.Namespace, keep: Keep) -> None:
        """Until all have ended; what was counted is kept, also where the run before was killed."""
        if importlib.util.find_spec("atheris") is None:
            version = ".".join(map(str, sys.version_info[:2]))
            raise LabError(f"atheris is not installed: none is made for Python {version}, or scripts/setup was not run")
        state = args.state.resolve()
        for name in left if args.fresh else ():
            shutil.rmtree(state / name, ignore_errors=True)
        before = {name: counted.read(state / name, digests[name]).inputs for name in left}
        # Of what an earlier run has counted nothing needs to be run again: it is added with the rest.
        most = {name: int(args.inputs - done) for name, done in left.items() if args.inputs - done > before[name]}
        try:
            if most:
                _work(state, most, digests, args)
        finally:
            _keep_counts(list(left), digests, state, keep)

    def table(self, found: Mapping[str, Result]) -> list[str]:
        """One line per target. edges: of our code, seen by the fuzzer; lines: of the functions that inputs enter."""
        lines = [
            f"{'target':14}{'inputs':>12}{'CPU s':>8}{'a second':>10}{'slowest s':>11}{'most MB':>9}{'edges':>7}{'lines':>12}{'bad':>5}"
        ]
        for name, row in found.items():
            cpu_s = row.sums.get("cpu_s", 0.0)
            reached, every = (int(row.most.get(one, 0)) for one in ("lines", "lines_of"))
            lines.append(
                f"{name:14}{row.count:>12,.0f}{cpu_s:>8.0f}{row.count / cpu_s if cpu_s else 0:>10,.0f}{row.most.get('slowest_s', 0):>11.3f}"
                f"{row.most.get('mb', 0):>9.1f}{row.most.get('edges', 0):>7.0f}{f'{reached} of {every}':>12}{len(row.problems):>5}"
            )
        rows = found.values()
        total = [sum(row.most.get(one, 0) for row in rows) for one in ("edges", "lines", "lines_of")]
        return [
            *lines,
            f"all: {sum(row.count for row in rows):,.0f} inputs; {total[0]:,.0f} edges, {total[1]:,.0f} of {total[2]:,.0f} lines",
        ]

    def judge(self, found: Mapping[str, Result], args: argparse.Namespace) -> Judged:
        """Each target for itself."""
        return Judged()


def parts_of(names: Sequence[str]) -> dict[str, list[Part]]:
    """Statements that each target reaches. Its seeds are run in a process of their own."""
    called = each_in_a_fork(_called_by_seeds, names)
    modules = Modules(sources.text_of)
    return {name: sources.parts_reached(calls, modules) for name, calls in called.items()}


def _called_by_seeds(name: str) -> list[tuple[str, int]]:
    return sources.calls_of(BY_NAME[name].run, BY_NAME[name].all_seeds())


def _work(state: Path, most: Mapping[str, int], digests: Mapping[str, str], args: argparse.Namespace) -> None:
    state.mkdir(parents=True, exist_ok=True)
    command = module(
        "campaignkit.fuzz.workers", *most, "--most", json.dumps(most), "--sources", json.dumps(dict(digests))
    )
    command += ["--state", str(state), "--crashes", str(args.crashes.resolve())]
    command += ["--seconds", str(args.seconds), "--jobs", str(args.jobs)]
    # In a session of its own: an interrupt at the terminal is passed on by us, once.
    log = state / "log"
    with log.open("wb") as told, subprocess.Popen(command, stderr=told, start_new_session=True) as running:
        try:
            code = running.wait()
        except KeyboardInterrupt:
            running.send_signal(signal.SIGTERM)
            code = running.wait()
            raise
    if code:
        words = log.read_text(errors="replace")[-2000:]
        raise LabError(f"the run itself ended with {code}: {words}", exit_code=EXIT_BROKEN)


def _keep_counts(names: Sequence[str], digests: Mapping[str, str], state: Path, keep: Keep) -> None:
    """What was counted goes into the results, with how many lines the inputs reach by now."""
    found = {name: one for name in names if (one := counted.read(state / name, digests[name])).inputs or one.failures}
    day, commit = today(), sources.commit()
    for name, (lines, lines_of) in reach.counts(list(found), state).items() if found else ():
        one = found[name]
        most = {"slowest_s": round(one.slowest_s, 3), "mb": round(one.most_bytes / (1 << 20), 1), "edges": one.edges}
        most |= {"lines": lines, "lines_of": lines_of}
        failed = tuple(f"{place}: {words}" for place, words in one.failures.items())
        keep(
            Result(
                "fuzz",
                name,
                day,
                commit,
                one.source,
                one.inputs,
                {"cpu_s": round(one.cpu_seconds, 1)},
                most,
                {},
                failed,
            )
        )
        counted.forget(state / name)
