"""What the page says of windows, judged as the commands judge them."""

from __future__ import annotations

from rankscope.diagnose.face.report.build import report_of
from rankscope.diagnose.face.report.content import Report
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.folder import Window


def of(windows: list[Window]) -> Report:
    return report_of(gather(windows), diagnose(windows))
