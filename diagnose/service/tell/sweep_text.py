"""The metrics that `rankscope sweep --textfile` left, for the same scrape as the service's own."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.probes.base.folders import read_plain

_BYTES_MOST = 1 << 20
_LINES_MOST = 5000
_LABELS = r'\{(?:\w+="(?:[^"\\\n]|\\.)*",?)*\}'
_LINE = re.compile(
    rf"# (?:HELP rankscope_sweep_\w+ .*|TYPE rankscope_sweep_\w+ gauge)|rankscope_sweep_\w+(?:{_LABELS})? [-+.\w]+"
)


def sweep_metrics(file: Path) -> str:
    """Return the series of a sweep's textfile; '' without one.

    Other lines are left out: one that is malformed would make Prometheus drop the whole scrape.
    """
    try:
        text = read_plain(file, _BYTES_MOST).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    lines = [line for line in text.split("\n") if _LINE.fullmatch(line)]
    return "".join(f"{line}\n" for line in lines[:_LINES_MOST])
