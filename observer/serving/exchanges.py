"""Requests and answers of connections, from samples of their byte counters. Pure.

A client sends, then receives: a request begins with the first byte sent after an answer, and ends
with the last byte received before the next request. The kernel says when it last sent and received,
so that times are exact to some milliseconds although samples are further apart; a request and its
answer between two samples count as one exchange.

A request is a transfer if it carries far more than its answer (new weights, say), else a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rankscope.probes.network.talks import TalkSample

_BULK_BYTES, _BULK_RATIO = 1 << 20, 16
_TICK_S = 0.005


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request with its answer. `begin_s`, `end_s`: CLOCK_MONOTONIC; `whole`: the answer was seen
    to its end.
    """

    begin_s: float
    end_s: float
    sent_bytes: int
    received_bytes: int
    whole: bool

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def is_transfer(self) -> bool:
        """Whether the request sends at least 1 MiB, and at least 16 times the bytes of its answer."""
        return self.sent_bytes >= max(_BULK_BYTES, _BULK_RATIO * self.received_bytes)


@dataclass(slots=True)
class _Open:
    """A request in progress, and its answer so far; times as in Exchange."""

    begin_s: float
    end_s: float
    sent: int = 0
    received: int = 0

    def closed(self, whole: bool) -> Exchange:
        """Return it as an exchange; `whole`: its answer was seen to the end."""
        return Exchange(self.begin_s, max(self.end_s, self.begin_s), self.sent, self.received, whole)


def exchanges_of(samples: Sequence[TalkSample]) -> list[Exchange]:
    """Return the exchanges of one connection, in order."""
    if not samples:
        return []
    found: list[Exchange] = []
    first = samples[0]
    now = _Open(first.sent_at_s, first.at_s) if first.asks else None
    for before, after in pairwise(samples):
        sent, received = after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes
        unanswered = now is not None and not now.received
        asks = after.asks or (unanswered and sent > 0 and received > 0 and _at_once(after))
        if received > 0 and asks and sent >= _BULK_BYTES and now is not None and now.received:
            # A transfer with its answer, and the next request.
            found += [
                now.closed(whole=True),
                Exchange(before.at_s, max(after.received_at_s, before.at_s), sent, received, whole=True),
            ]
            now, sent, received = _Open(after.sent_at_s, after.at_s), 0, 0
        if received > 0 and asks and now is not None:  # the answer came before the next request
            now.received, now.end_s = now.received + received, after.received_at_s
            received = 0
        if sent > 0:
            if now is None or now.received:
                if now is not None:
                    found.append(now.closed(whole=True))
                now = _Open(max(min(after.sent_at_s, after.at_s), before.at_s if received else 0.0), after.at_s)
            now.sent += sent
        if received > 0 and now is not None:
            now.received, now.end_s = now.received + received, after.received_at_s
    if now is not None:
        whole = now.received > 0 and not samples[-1].asks
        now.end_s = now.end_s if whole else samples[-1].at_s
        found.append(now.closed(whole))
    return found


def _at_once(sample: TalkSample) -> bool:
    """Tell whether a connection last sent and received within one tick of the kernel's clock: the order is unknown."""
    return abs(sample.sent_at_s - sample.received_at_s) <= _TICK_S


def union_s(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge intervals that overlap; return them in order."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def length_s(spans: Iterable[tuple[float, float]]) -> float:
    """Sum of the lengths of intervals that do not overlap."""
    return sum(end - begin for begin, end in spans)
