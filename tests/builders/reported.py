"""What the page says of windows, judged as the commands judge them."""

from __future__ import annotations

from rankscope.diagnose.fleet.gather import gather
from rankscope.diagnose.report.build import report_of
from rankscope.diagnose.report.content import Report
from rankscope.diagnose.solve.judge import diagnose
from rankscope.observer.window.folder import Window


def of(windows: list[Window]) -> Report:
    return report_of(gather(windows), diagnose(windows))
