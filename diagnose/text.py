"""Text as it goes out: to terminals, JSON, Prometheus, syslog and hooks. What a window holds may come from targets, or be forged."""

from __future__ import annotations

import re
from typing import Any

from rankscope.diagnose import budgets
from rankscope.probes.base.text import printable


def clean(text: str, most: int = 200) -> str:
    """Escape control and direction characters and cut to `most` characters."""
    return printable(text, most)


def short(text: str, most: int) -> str:
    """The same, where it is too long without its middle: 'a_very_long_name' → 'a_ver…name'. How a name begins and ends tells most."""
    said = clean(text, budgets.NAME_MOST)
    if len(said) <= most:
        return said
    end = (most - 1) // 2
    return f"{said[: most - 1 - end]}…{said[len(said) - end :]}"


def clean_all(content: Any) -> Any:
    """Content for JSON with all its text cleaned, keys too."""
    if isinstance(content, str):
        return clean(content, budgets.NAME_MOST)
    if isinstance(content, dict):
        return {clean_all(key): clean_all(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [clean_all(value) for value in content]
    return content


def ordinal(number: int) -> str:
    """Format 1 as '1st', 22 as '22nd', 113 as '113th'."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"


def seconds(value: float) -> str:
    """A duration with two or three significant digits: 0.0813 → '0.081 s', 2.41 → '2.4 s'."""
    if abs(value) < 5e-5:  # less than the last digit that is shown
        return "0 s"
    if value >= 10:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.1f} s"
    if value >= 0.01:
        return f"{value:.3f} s"
    return f"{value * 1e3:.1f} ms"


def after(word: str, name: str) -> str:
    """A word with a blank and a name, ' on node-0'; '' where the name is not known."""
    return f" {word} {name}" if name else ""


def held(text: str) -> str:
    """The same with no-break spaces between numbers and their units: '0.3\xa0s of each step'."""
    return re.sub(
        r"(\d) (?=(?:s|s/step|ms|%|x|min|h|days|[kKMGT]i?B|[kMG]?B/s)(?![\w/]))", "\\1\N{NO-BREAK SPACE}", text
    )


def minutes(value: float) -> str:
    """A long duration as people say it: 84 → '84 s', 840 → '14 min', 30,000 → '8.3 h', 300,000 → '3.5 days'."""
    for least, unit, size in ((48 * 3600, "days", 86400), (2 * 3600, "h", 3600)):
        if value >= least:
            return f"{value / size:.1f} {unit}"
    return f"{value / 60:.0f} min" if value >= 120 else f"{value:.0f} s"


def rate(bytes_per_second: float) -> str:
    """A data rate: '12.5 MB/s'."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.3g} {unit}"
    return f"{bytes_per_second:.3g} B/s"


def rank_list(ranks: tuple[int, ...], most: int = 8) -> str:
    """'rank 3', 'ranks 0-3', 'ranks 1, 5, 9 and 40 more'."""
    return f"rank{'' if len(ranks) == 1 else 's'} {rank_spans(ranks, most)}"


def rank_spans(ranks: tuple[int, ...], most: int) -> str:
    """Format sorted numbers as at most `most` spans: '3', '0-3', '1, 5, 9 and 40 more'."""
    spans: list[str] = []
    counts: list[int] = []
    first = last = ranks[0] if ranks else 0
    for value in (*ranks[1:], None):
        if value is not None and value == last + 1:
            last = value
            continue
        spans.append(str(first) if first == last else f"{first}-{last}" if last > first + 1 else f"{first}, {last}")
        counts.append(last - first + 1)
        first = last = value if value is not None else 0
    if len(spans) > most:
        return f"{', '.join(spans[:most])} and {sum(counts[most:])} more"
    return ", ".join(spans)
