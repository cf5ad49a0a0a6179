"""A job that has not begun to train is no hang until it is older than starts are; one that has trained is, however young."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import columns

from rankscope.diagnose import limits
from rankscope.diagnose.infer.model.still.starting import HANDSHAKE_BYTES
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.bundle import read_bundle
from rankscope.observer.window.folder import Window

STARTS = Path(__file__).parents[3] / "data" / "starts"
AFTER_CONNECTING = ("compute", "sleep")
ABSENT = {"late": (2,), "two": (1, 2), "compute": (2,), "sleep": (2,)}


def recorded(name: str) -> Window:
    return read_bundle(STARTS / f"{name}.rankscope").windows[0]


def with_values(window: Window, table: str, **values: Any) -> Window:
    return columns(window, table, [row | values for row in getattr(window, table).to_pylist()])


@pytest.mark.parametrize("name", ABSENT)
def test_a_start_is_no_hang_and_says_who_waits_where_for_which_rank(name: str) -> None:
    # WHEN a job of some seconds is diagnosed, some ranks of which have not come yet
    verdict = diagnose([recorded(name)])

    # THEN no rank is a suspect, and the first note says where each is, what for, and since when
    assert (verdict.status, verdict.exit_code, verdict.suspects) == ("unknown", 3, ())
    text = verdict.notes[0].text
    absent = ABSENT[name]
    waiting = tuple(rank for rank in range(3) if rank not in absent)
    who = "rank 0 waits" if len(waiting) == 1 else "ranks 0, 1 wait"
    call = {"compute": "all_reduce", "sleep": "barrier"}.get(name, "init_process_group")
    assert f"{who} in " in text and f"in its call of {call}, for other ranks, for the whole window" in text, text
    assert f"{who} for {'rank 2' if len(absent) == 1 else 'ranks 1, 2'}; the job was started 1" in text, text
    assert ("rank 2 " if len(absent) == 1 else "ranks 1, 2 ") + ("computes" if name == "compute" else "sleep") in text
    assert text.endswith("a start is called a hang after 10 min")
    assert "longer window" not in text


@pytest.mark.parametrize("name", ABSENT)
def test_a_start_that_lasts_longer_than_starts_do_is_a_hang_of_the_ranks_that_are_waited_for(name: str) -> None:
    old = with_values(recorded(name), "ranks", age_s=limits.START_SECONDS)
    verdict = diagnose([old])
    assert verdict.status == "hang"
    assert sorted(rank for suspect in verdict.suspects for rank in suspect.ranks) == list(ABSENT[name])


@pytest.mark.parametrize("name", AFTER_CONNECTING)
@pytest.mark.parametrize("carried", [HANDSHAKE_BYTES + 1, None])
def test_ranks_that_have_exchanged_more_than_addresses_hang_however_young_the_job_is(
    name: str, carried: int | None
) -> None:
    """So do ranks of which nobody knows what they have exchanged, as in windows of older observers."""
    verdict = diagnose([with_values(recorded(name), "flows", carried_bytes=carried)])
    assert (verdict.status, verdict.suspects[0].ranks) == ("hang", (2,))


@pytest.mark.parametrize("name", ABSENT)
def test_a_job_whose_age_is_not_known_hangs(name: str) -> None:
    assert diagnose([with_values(recorded(name), "ranks", age_s=None)]).status == "hang"


@pytest.mark.parametrize(("state", "cause"), [("stopped", "stopped"), ("exited", "exited")])
def test_a_rank_that_is_stopped_or_gone_is_named_in_a_start_as_well(state: str, cause: str) -> None:
    window = recorded("late")
    more = {"stopped": {"stopped_s": 8.0}, "exited": {"ended_s": 0.5, "exit_status": 9}}[state]
    rows = [row | ({"state": state} | more if row["rank"] == 2 else {}) for row in window.ranks.to_pylist()]
    verdict = diagnose([columns(window, "ranks", rows)])
    assert (verdict.status, verdict.suspects[0].cause, verdict.suspects[0].ranks) == ("hang", cause, (2,))
