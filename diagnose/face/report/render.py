"""Render a report as one self-contained HTML file: no network, no other file, no foreign inline code.

jinja2 escapes everything that a job could have named; the script reads JSON that cannot end its element. The page's
policy allows its one style and one script by their hashes, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rankscope.diagnose.face.report.content import FlameGraph, Heat, Report, Timeline, Track
from rankscope.diagnose.face.report.sections.timeline import PARTS
from rankscope.diagnose.text import held, seconds
from rankscope.probes.base.arrays import Floats

_HERE = Path(__file__).parent
_LETTER = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]"  # Hebrew, Arabic, Syriac and their forms
_FROM_THE_RIGHT = re.compile(rf"{_LETTER}(?:\w*{_LETTER})?")
_UNKNOWN = 0xFFFF  # code of an unknown heat map cell
_HEIGHT = 1000  # chart height in SVG units


def render(report: Report) -> str:
    """Render a report as an HTML page."""
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["seconds"] = lambda value: f"-{seconds(-value)}" if value < 0 else seconds(value)
    environment.filters["line"] = lambda text: straight(held(text))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = {"heat": _heat(report.heat), "flame": _flame(report.flames), "steps": _steps(report.timeline)}
    return environment.get_template("page.html").render(
        report=report, policy=policy, style=style, script=script, data=_safe_json(data), parts=PARTS,
        charts=[_bars(track, report.timeline.longest_s) for track in report.timeline.tracks] if report.timeline else [],
        bars=report.timeline.tracks[0].parts_s.shape[1] if report.timeline else 0, height=_HEIGHT,
    )  # fmt: skip


def straight(text: str) -> str:
    """Add U+200E after right-to-left text, so that following text such as a number stays in place."""
    return _FROM_THE_RIGHT.sub("\\g<0>\N{LEFT-TO-RIGHT MARK}", text)


def _hash(text: str) -> str:
    """Return the hash of a style or script as the page's policy names it: 'sha256-…' in quotes."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def _safe_json(data: Any) -> str:
    """Encode JSON for a script element: it cannot end the element or begin a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _heat(heat: Heat | None) -> dict[str, Any] | None:
    """Convert the heat map to JSON for the page's script; None if there is none."""
    if heat is None:
        return None
    hosts = list(dict.fromkeys(rank.host for rank in heat.ranks))
    roles = list(dict.fromkeys(rank.role for rank in heat.ranks))
    host, role = ({name: number for number, name in enumerate(names)} for names in (hosts, roles))
    return {
        "functions": [[one.name, one.place, one.kind, int(one.waits), int(one.accused)] for one in heat.functions],
        "ranks": [[one.number, host[one.host], role[one.role], int(one.accused)] for one in heat.ranks],
        "hosts": hosts,
        "roles": roles,
        "share": _packed(heat.share, 1.0),
        "above": _packed(heat.above_s, largest := float(np.nanmax(heat.above_s, initial=0.0))),
        "aboveMost": largest,
        "leftOut": heat.left_out,
    }


def _packed(values: Floats, largest: float) -> str:
    """Encode shares of `largest` as 16-bit little-endian integers in base64; NaN gets a code of its own."""
    scaled = np.round(values / (largest or 1.0) * (_UNKNOWN - 1))
    return base64.b64encode(np.where(np.isfinite(scaled), scaled, _UNKNOWN).astype("<u2").tobytes()).decode()


def _flame(flames: FlameGraph | None) -> dict[str, Any] | None:
    """Convert the flame graph to JSON for the page's script; None if there is none."""
    if flames is None:
        return None
    rows = [
        [one.parent, one.name, one.place, one.kind, *(float(f"{x:.4g}") for x in (one.offset_s, one.seconds, one.above_s)), one.depth]
        for one in flames.frames
    ]  # fmt: skip
    return {"unit": flames.unit, "peers": flames.peers, "frames": rows}


def _steps(timeline: Timeline | None) -> dict[str, Any] | None:
    """Convert the timeline to JSON for the page's script; None if there is none."""
    if timeline is None:
        return None
    return {
        "bundled": timeline.bundled,
        "parts": list(PARTS),
        "tracks": [[_numbers(part) for part in track.parts_s] for track in timeline.tracks],
    }


def _numbers(values: Floats) -> list[float | None]:
    """Round numbers to four digits; None for what is not finite."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _bars(track: Track, longest_s: float) -> list[str]:
    """Draw the bars of one rank's steps: an SVG path per part, with its piece of every bar, from the bottom up.

    `longest_s`: seconds of a bar of full height.
    """
    tops = np.cumsum(np.nan_to_num(track.parts_s), axis=0) * _HEIGHT / longest_s
    paths = []
    for part in range(len(track.parts_s)):
        low = np.round(tops[part - 1] if part else np.zeros(tops.shape[1])).astype(int)
        high = np.round(tops[part]).astype(int)
        paths.append("".join(
            f"M{bar * 10} {_HEIGHT - low[bar]}v{low[bar] - high[bar]}h9v{high[bar] - low[bar]}z" for bar in np.flatnonzero(high > low)
        ))  # fmt: skip
    return paths
