"""Write the page for a browser: of the first verdict that could be judged, with first lines of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankscope.diagnose.face.cli.output import write_result
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.solve.unjudged import is_unjudged
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window


def page_of(place: Path, windows: Sequence[Window], verdicts: Sequence[Verdict]) -> None:
    """Write the page on the first verdict that could be judged. Raises BadData if none could."""
    drawn = sorted(verdicts, key=is_unjudged)
    write_page(place, gather(windows, drawn[0].job), drawn)


def write_page(place: Path, fleet: Fleet, verdicts: Sequence[Verdict]) -> None:
    """Write the page on the first verdict, which is on this fleet, with first lines of the
    others."""
    # Imported here, as a verdict in text needs no template engine.
    from rankscope.diagnose.face.report.build import report_of
    from rankscope.diagnose.face.report.render import render

    write_result(place, render(report_of(fleet, verdicts[0], verdicts[1:])).encode("utf-8"))
