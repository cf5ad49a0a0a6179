"""Rows of the table `counters` on servers that ranks ask, and the time that ranks wait for them. Pure.

asked    time in which a server had a question of a rank's unanswered, without transfers to it
alone    the part of it in which no other server of the run had one
idle     time of a round (any server is asked) in which a server has no question, mean over servers
pace     seconds of a question per byte of its answer: what a server needs for the same work
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rankscope.observer.serving.exchanges import Exchange, length_s, union_s
from rankscope.observer.serving.watch import Asked
from rankscope.observer.window.rows import CounterRow
from rankscope.probes.base.arrays import Floats

Spans = list[tuple[float, float]]


def server_rows(servers: Sequence[Asked], begin_s: float, end_s: float) -> list[CounterRow]:
    """Build the rows of one job's servers in a window (CLOCK_MONOTONIC)."""
    questions = [_within(_all(one, transfers=False), begin_s, end_s) for one in servers]
    rows: list[CounterRow] = []
    for place, one in enumerate(servers):
        others = union_s(span for other, spans in enumerate(questions) if other != place for span in spans)
        rows += _rows(one, questions[place], length_s(_without(questions[place], others)), begin_s, end_s)
    if servers:
        rows += _of_rounds(questions)
    return rows


def _of_rounds(questions: Sequence[Spans]) -> Iterator[CounterRow]:
    """Yield rows of the rounds of generation: times in which any server was asked."""
    rounds = union_s(span for spans in questions for span in spans)
    idle_s = [
        end - begin - sum(length_s(_cut(spans, begin, end)) for spans in questions) / len(questions)
        for begin, end in rounds
    ]
    yield CounterRow("server", name="server.any_asked_s", value=length_s(rounds))
    yield CounterRow("server", name="server.rounds", unit="events", value=float(len(rounds)))
    yield CounterRow("server", name="server.idle_s", value=sum(idle_s))
    yield from _quartiles(CounterRow("server", name="server.idle_in_round_s"), idle_s)


def _cut(spans: Spans, begin_s: float, end_s: float) -> Spans:
    """Return the parts of the intervals that lie between `begin_s` and `end_s`."""
    return [(max(begin, begin_s), min(end, end_s)) for begin, end in spans if end > begin_s and begin < end_s]


def _rows(one: Asked, questions: Spans, alone_s: float, begin_s: float, end_s: float) -> Iterator[CounterRow]:
    """Yield the rows of one server; `questions`: when it had one unanswered; `alone_s`: while no other server had."""
    name, program, pid = one.address, one.server.program, one.server.pid

    def row(what: str, value: float, unit: str = "s") -> CounterRow:
        """Build a row of this server, named `server.` and `what`."""
        return CounterRow("server", name, program, pid, name=f"server.{what}", unit=unit, value=value)

    every = [each for exchanges in one.exchanges.values() for each in exchanges if each.end_s > begin_s]
    asked = [each for each in every if not each.is_transfer and each.whole and each.begin_s >= begin_s]
    moved = [each for each in every if each.is_transfer]
    yield row("asked_s", length_s(questions))
    yield row("alone_s", alone_s)
    yield row("questions", float(len(asked)), "events")
    yield row("transfers", float(len(moved)), "events")
    yield row("transfer_s", length_s(_within(_all(one, transfers=True), begin_s, end_s)))
    yield row("transfer_bytes", float(sum(each.sent_bytes for each in moved)), "bytes")
    if math.isfinite(one.run_s):
        yield row("run_s", one.run_s)
        yield row("queue_s", one.queue_s)
    yield from _quartiles(row("question_s", 0.0), [each.seconds for each in asked])
    yield from _quartiles(
        row("pace", 0.0, "s/byte"), [each.seconds / each.received_bytes for each in asked if each.received_bytes]
    )


def _quartiles(row: CounterRow, values: Sequence[float]) -> Iterator[CounterRow]:
    """Yield `row` as a gauge: the median of the values, with their quartiles as least and greatest; none if empty."""
    if values:
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        yield CounterRow(
            row.scope, row.instance, row.comm, row.pid, name=row.name, unit=row.unit, kind="gauge",
            value=middle, minimum=low, maximum=high,
        )  # fmt: skip


def asked_in_steps(servers: Iterable[Asked], pid: int, edges_s: Floats, most_s: Floats) -> Floats:
    """Compute the seconds of each step in which the rank `pid` waited for servers.

    `edges_s`: begins and ends of its steps (CLOCK_MONOTONIC), one more than steps; `most_s`: what
    it waited for other threads and processes in each.
    """
    spans = union_s((each.begin_s, each.end_s) for one in servers for each in one.exchanges.get(pid, ()))
    if not spans or len(edges_s) < 2:
        return np.zeros(max(len(edges_s) - 1, 0))
    begin, end = np.array(spans).T
    total = np.concatenate(([0.0], np.cumsum(end - begin)))

    def until(at: Floats) -> Floats:
        """Return the seconds of the intervals before each of these times."""
        place = np.searchsorted(begin, at, side="right")
        over = np.where(place > 0, np.maximum(end[place - 1] - at, 0.0), 0.0)
        return np.asarray(total[place] - over, dtype=np.float64)

    return np.asarray(np.clip(np.diff(until(edges_s)), 0.0, most_s), dtype=np.float64)


def _all(one: Asked, *, transfers: bool) -> Iterator[Exchange]:
    """Yield the exchanges of all ranks with a server: only transfers, or if not `transfers`, only the others."""
    return (each for exchanges in one.exchanges.values() for each in exchanges if each.is_transfer == transfers)


def _within(exchanges: Iterable[Exchange], begin_s: float, end_s: float) -> Spans:
    """Return when any of the exchanges was open in the window."""
    return union_s(
        (max(each.begin_s, begin_s), min(each.end_s, end_s))
        for each in exchanges
        if each.end_s > begin_s and each.begin_s < end_s
    )


def _without(spans: Spans, others: Spans) -> Spans:
    """Cut `others` out of `spans`; both are in order and without overlaps."""
    left: Spans = []
    for begin, end in spans:
        at = begin
        for other_begin, other_end in others:
            if other_end <= at or other_begin >= end:
                continue
            if other_begin > at:
                left.append((at, other_begin))
            at = max(at, other_end)
        if at < end:
            left.append((at, end))
    return left
