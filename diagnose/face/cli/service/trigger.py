"""`rankscope trigger`: ask the running service for a closer look now, and wait for its verdict if wanted."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rankscope.diagnose.face.cli.output import patience, tell, telling
from rankscope.diagnose.infer.past.history import DEFAULT_FOLDER as HISTORY
from rankscope.diagnose.service.events import clock
from rankscope.diagnose.service.place import WatchPlace
from rankscope.diagnose.service.tell.answers import Answers
from rankscope.diagnose.service.tell.events_log import EventsLog
from rankscope.diagnose.severity import OK
from rankscope.diagnose.text import clean, seconds
from rankscope.observer.window.staging import safe_name
from rankscope.probes.base.errors import EXIT_HEALTHY, MissingFeature, NeedsRoot, UsageError

_LOOKS_EVERY_S = 0.25
_LIVES_EVERY_S = 5.0


class NobodyWatches(MissingFeature):
    """No service runs on this host."""

    help = "Start one: `rankscope watch`; or look now, without one: `rankscope diagnose`."


def run(*, state: Path, job: str | None, wait: bool = False, at_most_s: float = 300.0, as_json: bool = False) -> int:
    """Write a request, which the service reads every second; return exit code 0.

    `wait`: until the service has answered for each job, `at_most_s` at most; then print its verdicts and return the worst
    one's exit code. Raises NeedsRoot, NobodyWatches, OutputFailed, UsageError.
    """
    if as_json and not wait:
        raise UsageError("--json prints the verdict: it goes with --wait")
    if os.geteuid() != 0:
        raise NeedsRoot("asking the service of a host needs root")
    place = WatchPlace(state)
    if not state.is_dir() or not place.is_held():
        raise NobodyWatches(f"no rankscope watch holds {state}")
    with EventsLog(place.events) as log:
        answers = Answers(time.time())
        place.ask(job or "")
        if not wait:
            sys.stderr.write(
                f"asked; what it sees is in the service's log: {place.events}, or `journalctl -u rankscope-watch`"
                " where systemd runs it; --wait waits for it here\n"
            )
            return EXIT_HEALTHY
        with telling("the verdict") as told:
            _follow(place, log, answers, at_most_s, as_json)
    return told.code(answers.code)


def _follow(place: WatchPlace, log: EventsLog, answers: Answers, at_most_s: float, as_json: bool) -> None:
    """Print each answer as it comes; at the end say on stderr why there is none, if so."""
    until_s, lives_s = time.monotonic() + at_most_s, time.monotonic() + _LIVES_EVERY_S
    with contextlib.ExitStack() as waiting:  # until there is something to print
        waiting.enter_context(patience("asked; waiting for the service to look and judge"))
        while not answers.done and time.monotonic() < until_s:
            time.sleep(_LOOKS_EVERY_S)
            for event in log.new():
                if answers.hear(event):
                    waiting.close()
                    _print(event, as_json)
            if time.monotonic() > lives_s:
                lives_s += _LIVES_EVERY_S
                if not place.is_held():
                    answers.ended = "the service has ended"
    if not answers.verdicts or not answers.done:
        why = answers.ended or f"no verdict within {seconds(at_most_s)} (--at-most)"
        sys.stderr.write(f"rankscope: {why}; the service's log: {place.events}\n")


def _print(event: dict[str, Any], as_json: bool) -> None:
    """Print one answer of the service, as JSON or as a sentence with where its window is."""
    if as_json:
        print(json.dumps(event, ensure_ascii=False), flush=True)
        return
    state = str(event.get("state") or OK)
    mark = "" if state == OK else f"{state.upper()} "
    whose = f"{clean(str(event['job']), 80)}: " if event.get("job") else ""
    tell(f"{clock(time.time())} {mark}{whose}{clean(str(event.get('words', '')), 400)}", "  ")
    window = HISTORY / "windows" / safe_name(str(event.get("window") or ""))
    if isinstance(event.get("window"), str) and window.is_dir():
        tell(f"all of it: rankscope diagnose {window}; as a page: rankscope report {window} --html FILE", "  ")
