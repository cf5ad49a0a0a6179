"""Ledgers as one page for a browser: a bar, the table, what would come back. Pure; no script, nothing loaded."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from rankscope.diagnose.face.cli.service.ledger_table import first_words, heading, hours, rows, span, unit_of
from rankscope.diagnose.service.ledger.entry import Kind, Ledger
from rankscope.diagnose.service.ledger.gains import gains, lost_s
from rankscope.diagnose.text import clean

_COLOURS = {
    Kind.PRODUCTIVE: "#4a9d5b", Kind.STARTUP: "#8fb8de", Kind.GC: "#e0a030", Kind.CHECKPOINT: "#7a6fb0",
    Kind.EVALUATION: "#a99bd8", Kind.LOADER: "#d97b3f", Kind.PAUSE: "#c9a66b", Kind.HANG: "#b3261e", Kind.DOWN: "#7d1a14",
    Kind.REDONE: "#d05f8a", Kind.SLOW: "#e8c547", Kind.UNSEEN: "#bdbdbd",
}  # fmt: skip
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em;color:#222;background:#fff}
h2{margin:1.6em 0 .2em}.bar{display:flex;height:1.6em;margin:.6em 0;border-radius:3px;overflow:hidden}
.key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
table{border-collapse:collapse;width:100%}td,th{padding:.25em .6em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left;overflow-wrap:anywhere}.first{font-weight:600}
"""
_HEADS = ("What", "Ranks", "Count", "Every", "Each", "Time", "%")


def page(ledgers: Sequence[Ledger], now: float) -> str:
    """Return the page."""
    parts = "\n".join(part for ledger in ledgers for part in _section(ledger, now))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Rankscope: ledger</title>'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head>\n<body><h1>Where the hours went</h1>\n{parts}\n</body></html>\n"
    )


def _section(ledger: Ledger, now: float) -> Iterator[str]:
    """Yield the HTML of one ledger: heading, bar, table, sums, and what would come back first."""
    name, about = heading(ledger, now)
    yield f"<h2>{_safe(name)}</h2><p>{_safe(about)}</p>"
    yield from _bar(ledger)
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in _HEADS)}</tr>"
    total_s = max(ledger.total_s, 1e-9)
    for row in rows(ledger):
        cells = (
            row.what,
            row.ranks,
            row.count,
            row.every,
            row.each,
            span(row.spent_s),
            f"{100 * row.spent_s / total_s:.1f}",
        )
        yield f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
    lost_h = lost_s(ledger) / 3600
    yield (
        f"<p>Not productive: {hours(lost_h)} of {hours(ledger.total_s / 3600)} h, {hours(lost_h * ledger.world)} of "
        f"{hours(ledger.total_s * ledger.world / 3600)} {unit_of(ledger)}.</p>"
    )
    for gain in gains(ledger)[:1]:
        yield f'<p class="first">{_safe(first_words(gain, ledger))}</p>'


def _bar(ledger: Ledger) -> Iterator[str]:
    """Yield the HTML of a bar with the share of each kind of time, and of its legend."""
    sums = {kind: spent_s for kind, spent_s in ledger.seconds().items() if spent_s > 0}
    whole_s = sum(sums.values()) or 1.0
    shares = {kind: 100 * spent_s / whole_s for kind, spent_s in sums.items()}
    blocks = (
        f'<div style="width:{share:.3f}%;background:{_COLOURS[kind]}" title="{kind.value} {share:.1f} %"></div>'
        for kind, share in shares.items()
    )
    yield f'<div class="bar">{"".join(blocks)}</div>'
    keys = (
        f'<span><i style="background:{_COLOURS[kind]}"></i>{kind.value} {share:.1f} %</span>'
        for kind, share in shares.items()
    )
    yield f'<p class="key">{"".join(keys)}</p>'


def _safe(text: str) -> str:
    """Clean a text and escape it for HTML."""
    return html.escape(clean(text, 400))
