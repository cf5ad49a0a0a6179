"""`rankscope diagnose`, `rankscope report`: one verdict per job, from windows, timings, or this
host now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.diagnose.collector import paused
from rankscope.diagnose.face.cli.keep_history import remember
from rankscope.diagnose.face.cli.live import observe_until_told
from rankscope.diagnose.face.cli.output import (
    complain,
    free_place,
    patience,
    tell,
    telling,
    width_of,
    wrap,
)
from rankscope.diagnose.face.cli.page import page_of, write_page
from rankscope.diagnose.face.cli.report import print_reports
from rankscope.diagnose.face.cli.shell import dash
from rankscope.diagnose.face.documents.verdicts import judge_all
from rankscope.diagnose.infer.causes.hang.flight import verdict_of
from rankscope.diagnose.infer.fleet.large import engines
from rankscope.diagnose.infer.fleet.large.topology import Group, read_topology
from rankscope.diagnose.infer.fleet.sources import Loaded, Source, Sources, find, load, load_baseline, load_found
from rankscope.diagnose.infer.fleet.timings.from_steps_file import fleet_of
from rankscope.diagnose.infer.fleet.timings.steps_file import read_timings
from rankscope.diagnose.infer.flight.account import blames
from rankscope.diagnose.infer.flight.dumps import read_folder
from rankscope.diagnose.infer.past.history import DEFAULT_FOLDER, History
from rankscope.diagnose.infer.solve.judge_steps_file import judge_file
from rankscope.diagnose.infer.solve.large_fleet import diagnose_large, is_large
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict, worst_first
from rankscope.diagnose.infer.verdict.sentence import headline
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window, prepare_folder, write_window
from rankscope.probes.base.errors import UsageError

AUTO = "auto"  # for a folder of this name write ./auto


def run(
    *,
    folders: tuple[Path | str, ...],
    baseline: tuple[Path | str, ...],
    steps: Path | None,
    window_s: float,
    at_most_s: float,
    job: str | None,
    pids: tuple[int, ...],
    as_json: bool,
    verbose: bool,
    history: Path | None = None,
    keep: bool = True,
    html: Path | None = None,
    out: Path | None = None,
    engine: str = "local",
    topology: Path | None = None,
    flight_recorder: Path | None = None,
) -> int:
    """Print the verdicts and return the exit code of the worst.

    `history`: None for the usual folder; `keep`: store windows observed here in it; `html`: file
    for a page as well; `out`: folder for windows observed here.
    """
    _sensible(folders, baseline, steps, pids, html, out, flight_recorder)
    with patience("reading the flight recorder's dumps"):
        dumps = read_folder(flight_recorder) if flight_recorder is not None else ()
        alone = (
            verdict_of(dumps, clean(flight_recorder.name if flight_recorder else "", 80))
            if dumps and not folders
            else None
        )
    if alone is not None:
        return _print([alone], as_json, verbose)
    if steps is not None:
        return _print([_of_timings(steps, html)], as_json, verbose)
    automatic = AUTO in map(str, baseline)
    store = History(history if history is not None else DEFAULT_FOLDER)
    shared = read_topology(topology) if topology is not None else ()
    # Before observing, so that a bad baseline or history does not cost a window.
    with patience("reading the baseline"):
        earlier = () if automatic or folders else load_baseline(baseline)
    if history is not None and keep and not folders:
        store.prepare()
    if out is not None:
        prepare_folder(out)
    if not folders:

        def judged(windows: Sequence[Window]) -> list[Verdict]:
            """Judge the windows just observed, one verdict per job."""
            loaded = Loaded(tuple(windows), ())
            return judge_all(loaded, earlier, job, store if automatic else None, shared, blames(dumps))

        windows, verdicts = observe_until_told(window_s, at_most_s, job, pids, verbose, judged)
        code = _print(verdicts, as_json, verbose)
        if keep:
            for trouble in remember(store, windows, verdicts):
                complain(trouble)
        # Last, so that a failed write costs neither the verdict nor the history.
        if out is not None:
            for window in windows:
                write_window(window, out)
        _page_too(html, windows, verdicts)
        return code
    with patience("reading windows") as say, engines.beginning(engine), paused():
        found = find(folders)
        large = not automatic and is_large(found)
        if large and dumps:
            raise UsageError(
                "--flight-recorder goes with fewer hosts; without folders the dumps of any number are judged alone"
            )
        if large and html is not None:
            raise UsageError("of so many hosts `rankscope report` makes the page, which reads all of every rank")
        if large:
            say("reading and judging many hosts")
            verdicts = _judge_large(found, job, engine, shared, find(baseline, every_moment=True).chosen)
        else:
            earlier = () if automatic else load_baseline(baseline, folders)
            loaded = load_found(found)
            say("judging")
            verdicts = judge_all(loaded, earlier, job, store if automatic else None, shared, blames(dumps))
    code = _print(verdicts, as_json, verbose)
    if not large:
        _page_too(html, loaded.windows, verdicts)
    return code


def _sensible(
    folders: Sequence[Path | str], baseline: Sequence[Path | str], steps: Path | None, pids: Sequence[int], html: Path | None,
    out: Path | None, flight_recorder: Path | None,
) -> None:  # fmt: skip
    """Check options.

    UsageError if they do not go together, OutputFailed if a page cannot be written.
    """
    if html is not None:
        free_place(html)
    if folders and pids:
        raise UsageError("--pid chooses what to observe: it makes no sense with window folders")
    if out is not None and (folders or steps or flight_recorder):
        raise UsageError("--out keeps what is observed now: it makes no sense where nothing is")
    if flight_recorder is not None and (steps or pids or (html and not folders)):
        raise UsageError("--flight-recorder goes with window folders, or alone")
    if steps is not None and (folders or baseline or pids):
        raise UsageError("--steps brings all there is to judge: it makes no sense with folders, --baseline or --pid")
    if AUTO in map(str, baseline) and len(baseline) > 1:
        raise UsageError("--baseline auto chooses by itself: give it alone")


def _of_timings(steps: Path, html: Path | None) -> Verdict:
    """Judge a file of timings, and write its page if wanted."""
    with patience("reading timings and judging them") as say:
        verdict = judge_file(steps)
        if html is not None:
            say("making the page")
            write_page(html, fleet_of(read_timings(steps), verdict.job), [verdict])
    return verdict


def report(
    folders: tuple[Path | str, ...], baseline: tuple[Path | str, ...], job: str | None, place: Path, as_json: bool
) -> int:
    """Write the page, print the first line of each verdict, and return the exit code of the
    worst. `place` `-`: standard output; the first lines go to stderr then."""
    dash.sensible(place, as_json)
    free_place(place)
    with patience("reading windows") as say:
        loaded = load(folders)
        say("judging")
        verdicts = judge_all(loaded, load_baseline(baseline, folders), job, None, ())
        say("making the page")
        page_of(place, loaded.windows, verdicts)
    with telling("the verdict") as told:
        if as_json:
            print(to_json(*verdicts))
        else:
            for verdict in verdicts:
                said = "\n".join(wrap(headline(verdict), " " * 7, width_of(sys.stdout)))
                print(said, file=sys.stderr if place == dash.STDOUT else sys.stdout)
            if place != dash.STDOUT:
                tell(f"the page is in {clean(str(place), 4096)}")
    return told.code(verdicts[0].exit_code)


def _page_too(place: Path | None, windows: Sequence[Window], verdicts: Sequence[Verdict]) -> None:
    """Write the page as well, if a place is given for it."""
    if place is not None:
        with patience("making the page"):
            page_of(place, windows, verdicts)


def _judge_large(
    found: Sources, wanted: str | None, engine: str, shared: Sequence[Group], baseline: Sequence[Source]
) -> list[Verdict]:
    """Judge thousands of hosts: one verdict for each selected job, worst first."""
    with engines.started(engine) as pool:
        judged = diagnose_large(found, wanted, pool, shared, baseline)
        verdicts = [replace(verdict, title=title) for title, verdict in judged]
    return worst_first(verdicts)


def _print(verdicts: Sequence[Verdict], as_json: bool, verbose: bool) -> int:
    """Print the verdicts (worst first) and return the exit code, also if the reader is gone."""
    with telling("the verdict") as told:
        if as_json:
            print(to_json(*verdicts))
        else:
            print_reports(verdicts, sys.stdout, verbose)
    return told.code(verdicts[0].exit_code)
