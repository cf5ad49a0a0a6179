"""The command line of scripts/fuzz: what is run, and a table of all that was ever run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fuzzkit import ledger, record
from fuzzkit.sources import sources_of
from fuzzkit.target import Target
from fuzzkit.targets import TARGETS
from fuzzkit.watch import MOST_BYTES, MOST_S
from labkit.machine.command import Parser
from labkit.machine.shell import module

REPOSITORY = Path(__file__).resolve().parents[2]
REGRESSIONS = REPOSITORY / "tests/data/fuzz"
RECORDS = REGRESSIONS / "records.json"
EXIT_FOUND, EXIT_USAGE, EXIT_MISSING, EXIT_BROKEN = 1, 64, 69, 70

EPILOG = f"""Each target is a parser of bytes that somebody else wrote. An input fails that makes it raise anything but what it
documents, take more than {MOST_S:g} s of the processor, or {MOST_BYTES >> 20} MB of memory. It is written into tests/data/fuzz,
where the tests find it from then on.
A run goes on where the last one ended, and may be ended at any moment; it runs at idle priority. Counts are those of a parser's
present source: where it changed, they begin anew. --record adds them to {RECORDS.relative_to(REPOSITORY)}, which is committed.

exit codes: 0 nothing failed, 1 something did, or (--report) some target has had fewer inputs than --inputs, 64 wrong usage,
69 the fuzzer (atheris) is not there for this Python, 70 the fuzzer itself broke"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.list:
        print("\n".join(f"{target.name:16} {target.what}" for target in TARGETS))
        return 0
    wanted = [target for target in TARGETS if not args.target or target.name in args.target]
    if args.report:
        known = ledger.current(ledger.read(args.records), sources_of([target.name for target in wanted]))
        code = _tell(wanted, {name: one.as_record() for name, one in known.items()}, args)
        return max(code, _tell_too_few(wanted, known, args.inputs))
    if importlib.util.find_spec("atheris") is None and not (args.table or args.record):
        version = ".".join(map(str, sys.version_info[:2]))
        print(
            f"fuzz: atheris is not installed: none is made for Python {version}, or scripts/setup was not run",
            file=sys.stderr,
        )
        return EXIT_MISSING
    if args.fresh:
        for target in wanted:
            shutil.rmtree(args.state / target.name, ignore_errors=True)
    if not (args.table or args.record):
        _run_all(wanted, args)
    if args.record:
        _record(wanted, args)
    return _tell(wanted, {target.name: record.read(args.state / target.name) for target in wanted}, args)


def _tell(wanted: Sequence[Target], found: dict[str, record.Record], args: argparse.Namespace) -> int:
    found = {target.name: found.get(target.name, record.Record()) for target in wanted}
    if args.json:
        args.json.write_text(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
    print("\n".join(table(wanted, found)))
    return EXIT_FOUND if any(one.failures for one in found.values()) else 0


def _tell_too_few(wanted: Sequence[Target], known: ledger.Ledger, least: int) -> int:
    """Which targets the record has too few inputs of, for their present source."""
    counts = {target.name: known[target.name].inputs if target.name in known else 0 for target in wanted}
    few = [f"{name} {count:,}" for name, count in counts.items() if count < least]
    if few:
        print(f"fewer than {least:,} inputs of {len(few)} of {len(wanted)} targets: {', '.join(few)}")
    return EXIT_FOUND if few else 0


def _record(wanted: Sequence[Target], args: argparse.Namespace) -> None:
    """What was run since it was last asked for goes into the committed file."""
    known = ledger.read(args.records)
    for target in wanted:
        one = record.read(args.state / target.name)
        more = ledger.added(known, target.name, one)
        if more is not known:
            known, one.kept_inputs, one.kept_cpu_seconds = more, one.inputs, one.cpu_seconds
            ledger.write(args.records, known)
            one.write(args.state / target.name)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="scripts/fuzz", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", metavar="NAME", help="only these (--list)")
    parser.add_argument(
        "--inputs", type=int, default=1_000_000, help="of each target, with those of earlier runs (default 1000000)"
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="run only as many as the committed record lacks, for the parsers of today",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="of the processor, at most, for each target in this run (default 600)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time (default 1)")
    parser.add_argument(
        "--state",
        type=Path,
        default=REPOSITORY / "fuzz-out",
        help="where corpus and counts are kept (default fuzz-out)",
    )
    parser.add_argument(
        "--crashes", type=Path, default=REGRESSIONS, help="where inputs that fail are written (default tests/data/fuzz)"
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs of these targets")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", action="store_true", help="only the table of what was run here")
    what.add_argument("--record", action="store_true", help="only add what was run here to the committed record")
    what.add_argument(
        "--report",
        action="store_true",
        help="only the table of the committed record, for today's source; 1 below --inputs",
    )
    parser.add_argument(
        "--records", type=Path, default=RECORDS, help="the committed record (default tests/data/fuzz/records.json)"
    )
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--list", action="store_true", help="the targets")
    args = parser.parse_args(argv)
    names = {target.name for target in TARGETS}
    if unknown := sorted(set(args.target or ()) - names):
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(sorted(names))}")
    args.state, args.crashes = args.state.resolve(), args.crashes.resolve()
    return args


def _run_all(wanted: Sequence[Target], args: argparse.Namespace) -> None:
    """Until all have ended; a second interrupt is not waited for."""
    sources = sources_of([target.name for target in wanted])
    known = ledger.current(ledger.read(args.records), sources)
    here = {name: record.read(args.state / name) for name in sources}
    others = {name: ledger.elsewhere(known, name, here[name]) for name in known} if args.missing else {}
    left = [
        name for name, source in sources.items()
        if here[name].source != source or here[name].inputs + others.get(name, 0) < args.inputs
    ]  # fmt: skip
    if not left:
        return
    command = module("fuzzkit.workers", *left)
    command += ["--sources", json.dumps(sources), "--elsewhere", json.dumps(others)]
    for name in ("state", "crashes", "inputs", "seconds", "jobs"):
        command += [f"--{name}", str(getattr(args, name))]
    args.state.mkdir(parents=True, exist_ok=True)
    log = args.state / "log"
    # In a session of its own: an interrupt at the terminal is passed on by us, once.
    with log.open("wb") as told, subprocess.Popen(command, stderr=told, start_new_session=True) as running:
        try:
            code = running.wait()
        except KeyboardInterrupt:
            running.send_signal(signal.SIGTERM)
            code = running.wait()
    if code:
        print(f"fuzz: the run itself ended with {code}: {log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        raise SystemExit(EXIT_BROKEN)


def table(wanted: Sequence[Target], found: dict[str, record.Record]) -> list[str]:
    """One line per target, over all its runs."""
    lines = [f"{'target':14}{'inputs':>12}{'CPU s':>9}{'a second':>10}{'slowest s':>11}{'most MB':>9}{'failures':>10}"]
    for target in wanted:
        one = found[target.name]
        rate = one.inputs / one.cpu_seconds if one.cpu_seconds else 0.0
        lines.append(
            f"{target.name:14}{one.inputs:>12,}{one.cpu_seconds:>9.0f}{rate:>10,.0f}{one.slowest_s:>11.3f}"
            f"{one.most_bytes / (1 << 20):>9.1f}{len(one.failures):>10}"
        )
    total = [found[target.name] for target in wanted]
    lines.append(
        f"{'all':14}{sum(one.inputs for one in total):>12,}{sum(one.cpu_seconds for one in total):>9.0f}{'':>10}"
        f"{max(one.slowest_s for one in total):>11.3f}{max(one.most_bytes for one in total) / (1 << 20):>9.1f}"
        f"{sum(len(one.failures) for one in total):>10}"
    )
    lines += [
        f"  {target.name}: {place}: {words}"
        for target in wanted
        for place, words in found[target.name].failures.items()
    ]
    return lines
