"""Whatever bytes come from the confined process, root does nothing that it may not, keeps no descriptor, and ends in an error of ours.

The same entry is what `scripts/fuzz --target requests` feeds (campaignkit/fuzz/targets/border.py).
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaignkit.fuzz.targets.border import Misused, requests
from rankscope.observer.apart import broker as brokers
from rankscope.observer.apart import plain, reading, wire
from rankscope.observer.apart.broker import Broker
from rankscope.observer.sight import Sight
from rankscope.probes.base.errors import RankscopeError

HUGE = 10**400
NAMES = ["pid", "hz", "ranks", "processes", "threads", "verbose", "function", "offsets", "on_return", "place", "links", "tid", "nice",
         "protocol", "kill", "duration_s", "rate_hz", "idle", "files", "text", "error", "number"]  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 40), st.text(max_size=6),
        st.sampled_from([HUGE, -HUGE, 1 << 31, 1 << 62, 0.5, 1e308, float("inf"), float("nan"), "rs_enter_0", "rs_call_site", "rs_sample"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=6,
)  # fmt: skip
ASKED = st.builds(
    lambda what, more: {"what": what, **more},
    st.sampled_from([*sorted(Broker.SERVICES), "window", "seen", "say", "failed", "done", "none"]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5),
)
LINES = st.one_of(ASKED.map(lambda one: json.dumps(one).encode()), st.binary(max_size=40))


def line(descriptors: int, **asked: Any) -> bytes:
    """One message, with so many descriptors."""
    return str(descriptors).encode() + json.dumps(asked).encode()


LOAD = line(0, what="load", hz=99, ranks=8, processes=64, threads=64, verbose=False)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), LINES), max_size=6))
def test_nothing_that_is_said_does_harm(messages: list[tuple[int, bytes]]) -> None:
    data = b"\n".join([LOAD, *(str(count).encode() + text for count, text in messages)])
    with contextlib.suppress(RankscopeError):
        requests(data)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_what_a_look_tells_is_a_sight_or_bad_data(value: Any) -> None:
    try:
        found = plain.unpack(Sight, json.dumps(value).encode())
    except RankscopeError:
        return
    assert isinstance(found, Sight)


@pytest.mark.parametrize(
    "message",
    [line(0, what="pyspy_start", pid=7, duration_s=1, rate_hz=5000, idle=False), line(0, what="release", links=[HUGE]),
     line(0, what="priority", tid=1, nice=0, yields_s=0.0), line(1, what="attach", function="rs_enter_0", offsets=[-16], on_return=False),
     line(0, what="uts_name", pid=-1), line(0, what="load", hz=10**9, ranks=1, processes=1, threads=1, verbose=False)],
    ids=lambda one: json.loads(one[1:])["what"],
)  # fmt: skip
def test_a_check_that_is_left_out_is_seen(message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = message if b'"load"' in message else LOAD + b"\n" + message
    with pytest.raises(RankscopeError):
        requests(data)
    for module in (brokers, reading):
        monkeypatch.setattr(module, "number", lambda value, *_: value)
        monkeypatch.setattr(module, "process", lambda value: value)
    monkeypatch.setattr(brokers.Path, "exists", lambda _: True)
    with pytest.raises(Misused):
        requests(data)


def test_a_descriptor_that_stays_open_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = line(2, what="none")
    with pytest.raises(RankscopeError):
        requests(data)
    real, calls = wire.close_all, []
    monkeypatch.setattr(wire, "close_all", lambda some: calls.append(tuple(some)))
    with pytest.raises(Misused, match="stays open"):
        requests(data)
    for some in calls:
        real(some)
