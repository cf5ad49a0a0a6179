"""`rankscope demo`: judge a recorded window that is shipped, and explain the verdict. No root, no job, no PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rankscope.diagnose.face.cli.output import free_place, patience, tell, telling, width_of, wrap
from rankscope.diagnose.face.cli.page import page_of
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.face.demo.explained import explained
from rankscope.diagnose.face.demo.window import ABOUT, PLACE, TRUTH
from rankscope.diagnose.infer.solve import judge
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.text import clean
from rankscope.observer.window.bundle import read_bundle
from rankscope.probes.base.errors import EXIT_HEALTHY

NEXT = (
    ("rankscope doctor", "can this host be observed? As root."),
    ("rankscope diagnose", "beside a job of yours, as root: 20 s later its culprit is named."),
)
_SOFT, _PLAIN = "\033[2m", "\033[0m"


def run(*, html: Path | None, as_json: bool) -> int:
    """Print the verdict with what each line means, write its page if wanted; return exit code 0, whatever the verdict:
    the window is not this host's.
    """
    if html is not None:
        free_place(html)
    with patience("judging a recorded window"):
        windows = read_bundle(PLACE).windows
        verdict = judge.diagnose(windows)
        if html is not None:
            page_of(html, windows, [verdict])
    with telling("the verdict") as told:
        if as_json:
            print(to_json(verdict))
        else:
            _print(list(report(verdict, width=width_of(sys.stdout))), html)
    return told.code(EXIT_HEALTHY)


def _print(lines: list[str], html: Path | None) -> None:
    """Print the report's lines with their meanings, dimmed on a terminal, then where its page is and what to do next."""
    width = width_of(sys.stdout)
    dim, plain = (_SOFT, _PLAIN) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    print("\n".join(wrap(ABOUT, "", width, True)) + "\n")
    for line, is_meaning in explained(lines, width):
        print(f"{dim}{line}{plain}" if is_meaning else line)
    print("\n" + "\n".join(wrap(TRUTH, "", width, True)) + "\n")
    if html is not None:
        tell(f"page     {clean(str(html), 4096)}, for a browser; it needs no network", " " * 9)
    for number, (command, what) in enumerate(NEXT):
        tell(f"{'next' if number == 0 else '':9}{command:22}{what}", " " * 31)
    tell(f"{'':9}of this window, without root: rankscope report {PLACE} --html FILE", " " * 9)
