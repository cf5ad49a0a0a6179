"""`rankscope sweep`: health checks of this host, or a comparison of many hosts' sweeps."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.diagnose.face.cli.host.host_log import log
from rankscope.diagnose.face.cli.output import (
    complain,
    patience,
    print_json,
    print_table,
    tell,
    telling,
    width_of,
    wrap,
)
from rankscope.diagnose.nvsentinel import send as nvsentinel_send
from rankscope.diagnose.nvsentinel.delivered import deliver
from rankscope.diagnose.severity import CRITICAL, OK, exit_code
from rankscope.diagnose.sweep import lasting
from rankscope.diagnose.sweep.config import FAIL_ON, Config, read_config
from rankscope.diagnose.sweep.confirm import confirmed
from rankscope.diagnose.sweep.engine import Sweep, is_ignored
from rankscope.diagnose.sweep.engine import sweep as run_sweep
from rankscope.diagnose.sweep.hook import run_hook
from rankscope.diagnose.sweep.output import as_json, as_prometheus, as_text, syslog_lines, write_atomically
from rankscope.diagnose.sweep.owed import Owed, again, as_words, owed
from rankscope.diagnose.sweep.registry import Check, all_checks
from rankscope.diagnose.sweep.spare import PLACE, Spare
from rankscope.diagnose.sweep.store import Store, open_store
from rankscope.diagnose.sweep.trends import trends
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import EXIT_CRITICAL, EXIT_DEGRADED, EXIT_HEALTHY, OutputFailed, UsageError
from rankscope.probes.host.procfs import ROOT

if TYPE_CHECKING:
    from rankscope.diagnose.sweep.peers import HostSweep

DEFAULT_CONFIG = Path("/etc/rankscope/sweep.toml")
DEFAULT_STATE = Path("/var/lib/rankscope/sweep")
_WRONG_SHOWN = 3  # of each host


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one sweep."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    fail_on: str | None = None
    config: Path | None = None
    state: Path = DEFAULT_STATE
    textfile: Path | None = None
    to_syslog: bool = False
    hook: str = ""
    nvsentinel: Path | None = None
    remediate: bool = False
    root: Path = ROOT
    as_json: bool = False
    verbose: bool = False


def run(options: Options) -> int:
    """Sweep this host and return the exit code: 0 ok, 1 warning, 2 critical, 3 unknown."""
    nvsentinel_send.check_asked(options.nvsentinel, options.remediate)
    checks = all_checks()
    config = _config(options, checks)
    chosen = choose(checks, options.only, (*options.skip, *config.skip))
    hours = _hours(checks, config)
    spare = Spare(PLACE) if (options.root, options.state) == (ROOT, DEFAULT_STATE) else None
    # Another sweep may be draining this host: without waiting, a prolog would let a job start.
    waiting = open_store(options.state, spare, config.longest_s)
    with patience("checking this host", lines=False), waiting as store:
        earlier = store.earlier()
        done = run_sweep(chosen, config, earlier, options.root)
        done = confirmed(done, chosen, config, earlier, options.root)
        due = owed(earlier.words, done)
        past = lasting.lasting(earlier.words, done, hours)
        done = replace(done, words=(*done.words, *as_words(due), *lasting.as_words(past)))
        done = store.save(done, tuple(check.id for check in chosen), config.retention_days)
        shown = [one for one in past if _is_wanted(one.id, one.instance, chosen, config)]
        done = replace(done, findings=lasting.repeated(done.findings, shown, done, hours))
        if not options.only:
            drifts = trends(store.history(done.time_s - config.retention_days * 86400, done.time_s), done.time_s)
            done = replace(done, findings=(*done.findings, *drifts))
        # Before the store is closed, so that failures are stored and no other sweep calls the hook
        # meanwhile.
        told = _call_hook(done, _wanted(due, chosen, config), store, options.hook or config.hook, config.hook_timeout_s)
        done = replace(done, notes=(*store.notes, *told))
        # Last, as a socket may not answer.
        if options.nvsentinel is not None:
            ran = {check.id for check in chosen}
            said = deliver(as_json(done), ran, options.state, options.nvsentinel, options.remediate)
            done = replace(done, notes=(*done.notes, *([said] if said else [])))
    return _tell(done, options, config, {check.id for check in checks if check.per_process})


def _hours(checks: Sequence[Check], config: Config) -> Callable[[str], float]:
    """Return how many hours findings by growth of a check last; 0 without such a setting."""
    found = {check.id: config.settings(check).get(lasting.HOURS, 0.0) for check in checks}
    return lambda identifier: float(value) if isinstance(value := found.get(identifier, 0.0), (int, float)) else 0.0


def _wanted(due: Sequence[Owed], chosen: Sequence[Check], config: Config) -> tuple[Owed, ...]:
    """Select the undelivered findings of the checks that run."""
    return tuple(one for one in due if _is_wanted(one.finding.id, one.finding.instance, chosen, config))


def _is_wanted(identifier: str, instance: str, chosen: Sequence[Check], config: Config) -> bool:
    """Tell whether an earlier finding is of a check that runs, and not accepted by the operator."""
    return any(check.id == identifier for check in chosen) and not is_ignored(config, identifier, instance)


def _call_hook(done: Sweep, due: Sequence[Owed], store: Store, hook: str, timeout_s: float) -> tuple[str, ...]:
    """Call the hook if needed, and return notes on it. Works even if the disk takes nothing."""
    more = again(due, done)
    if not hook or (done.state != CRITICAL and not more):
        return ()
    names = ", ".join(f"{one.id} {one.instance}".strip() for one in more)
    notes = (f"the hook is told what an earlier sweep found, too: {names}",) if more else ()
    told = replace(done, findings=(*done.findings, *more), notes=tuple(store.notes))
    if note := run_hook(hook, as_json(told), timeout_s):
        return (*notes, f"{note}{'; the next sweep calls it again' if due else ''}")
    if due:
        store.paid([one.key for one in due])
    return notes


def _tell(done: Sweep, options: Options, config: Config, per_process: Collection[str]) -> int:
    """Write metrics, print and log the findings, and return the exit code.

    A failure of one does not stop the others.
    """
    notes, failed = [], False
    if options.textfile is not None:
        try:
            write_atomically(options.textfile, as_prometheus(done, per_process))
        except OutputFailed as error:
            notes.append(f"no metrics were written: {error}")
            failed = True
    done = replace(done, notes=(*done.notes, *notes))
    with telling("the findings") as told:
        if options.as_json:
            print_json(as_json(done))
        else:
            for line in as_text(done, options.verbose, width_of(sys.stdout) if sys.stdout.isatty() else None):
                print(line)
    # Last, as the log's reader may have stopped.
    if options.to_syslog and (untold := log(syslog_lines(done))):
        complain(untold)
    told.failed = told.failed or failed
    return told.code(exit_code((finding.state for finding in done.findings), config.fail_on))


def list_checks(as_json_wanted: bool) -> int:
    """Print all checks with one line each; return exit code 0."""
    checks = all_checks()
    if as_json_wanted:
        print_json([{"id": check.id, "title": check.title, "settings": dict(check.settings)} for check in checks])
    else:
        print_table(["CHECK", "WHAT IT SAYS WHEN IT IS OK"], [[check.id, check.title] for check in checks])
    return EXIT_HEALTHY


def explain(identifier: str) -> int:
    """Print what one check reads and how it judges, with its settings. Raises UsageError."""
    (check,) = _named(all_checks(), (identifier,), exact=True)
    print(f"{check.id}\n")
    for paragraph in check.explanation.split("\n\n"):
        print("\n".join(wrap(" ".join(paragraph.split()), "", width_of(sys.stdout))) + "\n")
    print(f'Settings (in [check."{check.id}"]):')
    if check.settings:
        for name, default in check.settings.items():
            shown = list(default) if isinstance(default, tuple) else default
            print(f"  {name} = {shown}")
    print("  ignore = []   # instances that are known and accepted")
    return EXIT_HEALTHY


def compare(places: tuple[Path, ...], as_json_wanted: bool, verbose: bool = False) -> int:
    """Compare many hosts' sweeps.

    Return 1 if one is odd, else the code of the worst host's state. `verbose`: name all that is wrong, not only the worst.
    """
    from rankscope.diagnose.sweep.peers import odd_ones, read_sweeps

    with patience("reading sweeps and comparing them", lines=False):
        sweeps, notes = read_sweeps(places)
        odd = odd_ones(sweeps, {check.id for check in all_checks() if check.per_process})
    code = exit_code(sweep.state for sweep in sweeps)
    code = EXIT_DEGRADED if odd and code != EXIT_CRITICAL else code
    if as_json_wanted:
        print_json(
            {
                "schema": "rankscope.sweep-comparison/1",
                "hosts": [
                    {"host": sweep.host, "state": sweep.state, "wrong": [asdict(one) for one in sweep.wrong]} for sweep in sweeps
                ],
                "odd": [
                    {"host": one.host, "id": one.id, "instance": one.instance, "value": one.value, "others": one.others,
                     "hosts": one.hosts, "z": one.z}
                    for one in odd
                ],
                "notes": list(notes),
            }
        )  # fmt: skip
        return code
    if odd:
        rows = [[one.host, f"{one.id} {one.instance}".strip(), one.value, one.others] for one in odd]
        print_table(["ODD HOST", "CHECK", "VALUE", "OTHERS"], rows)
    for sweep in sweeps:
        _print_wrong(sweep, verbose)
    for note in notes:
        tell(f"note  {clean(note, 300)}", " " * 6)
    few = "" if len(sweeps) >= 3 else "; fewer than three cannot be compared"
    tell(f"{len(sweeps)} hosts compared: {len(odd)} odd values{few}")
    return code


def _print_wrong(sweep: HostSweep, verbose: bool) -> None:
    """Print a line for each finding that is not ok, a few of many, worst first."""
    shown = sweep.wrong if verbose else sweep.wrong[:_WRONG_SHOWN]
    for one in shown:
        what = f"{one.id} {one.instance}".strip()
        tell(f"{sweep.host}: {one.state}: {what}{': ' + one.why if one.why else ''}", "  ")
    if len(shown) < len(sweep.wrong):
        tell(f"{sweep.host}: {len(sweep.wrong) - len(shown)} more with -v", "  ")
    if sweep.state != OK and not shown:
        tell(f"{sweep.host}: {sweep.state}")


def choose(checks: Sequence[Check], only: Sequence[str], skip: Sequence[str]) -> tuple[Check, ...]:
    """Select the checks to run by id, or by family (the part before the point).

    Raises UsageError.
    """
    wanted = _named(checks, only) if only else tuple(checks)
    unwanted = {check.id for check in _named(checks, skip)} if skip else set()
    return tuple(check for check in wanted if check.id not in unwanted)


def _named(checks: Sequence[Check], names: Sequence[str], exact: bool = False) -> tuple[Check, ...]:
    """Select the checks with these ids or families (`exact`: ids only). Raises UsageError for an unknown one.

    A name may be several, separated by commas or blanks.
    """
    asked = [name for entry in names for name in re.split(r"[,\s]+", entry) if name]
    for name in asked:
        if not any(check.id == name or (not exact and check.id.partition(".")[0] == name) for check in checks):
            error = UsageError(f"there is no check {name!r}")
            error.help = "`rankscope sweep --list` shows them."
            raise error
    return tuple(check for check in checks if check.id in asked or check.id.partition(".")[0] in asked)


def _config(options: Options, checks: Sequence[Check]) -> Config:
    """Read the operator's settings from --config, else from the default file if there is one; --fail-on overrides it.

    Raises ConfigError, UsageError.
    """
    path = options.config
    if path is None and options.root == ROOT and DEFAULT_CONFIG.exists():
        path = DEFAULT_CONFIG
    config = read_config(path, checks) if path is not None else Config()
    if options.fail_on is not None:
        if options.fail_on not in FAIL_ON:
            raise UsageError(f"--fail-on must be one of {', '.join(FAIL_ON)}")
        config = replace(config, fail_on=options.fail_on)
    return config
