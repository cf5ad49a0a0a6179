"""Hardware that turns bad while the service runs, and what is said to whoever drains hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.watch import events
from rankscope.diagnose.watch.alarms import Alarm, AlarmKind
from rankscope.diagnose.watch.looks.look import Seen
from rankscope.diagnose.watch.sick import Sick


class Machine:
    """One port and one memory controller, as files of a root of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = root / "sys/class/infiniband/mlx5_3/ports/1"
        (self.port / "counters").mkdir(parents=True)
        self.memory = root / "sys/devices/system/edac/mc/mc0"
        (self.memory / "dimm0").mkdir(parents=True)
        (self.memory / "dimm0/dimm_label").write_text("DIMM_A1\n")
        self.link("4: ACTIVE", 0)
        self.errors(0)

    def link(self, state: str, downs: int) -> None:
        (self.port / "state").write_text(f"{state}\n")
        (self.port / "counters/link_downed").write_text(f"{downs}\n")

    def errors(self, uncorrected: int) -> None:
        for name, count in (("dimm_ce_count", 7), ("dimm_ue_count", uncorrected)):
            (self.memory / "dimm0" / name).write_text(f"{count}\n")
        (self.memory / "ue_count").write_text(f"{uncorrected}\n")
        (self.memory / "ce_count").write_text("7\n")


def test_a_link_that_goes_down_and_an_error_that_was_not_corrected_are_told_once(tmp_path: Path) -> None:
    machine, sick = Machine(tmp_path), Sick(tmp_path)
    assert sick.turned() == sick.turned() == ()
    machine.link("1: DOWN", 1)
    (down,) = sick.turned()
    assert (down.state, down.drain) == (CRITICAL, "rankscope: nic/down mlx5_3")
    assert sick.turned() == ()
    machine.link("4: ACTIVE", 1)
    (up,) = sick.turned()
    assert (up.state, up.drain) == (OK, "")
    machine.link("4: ACTIVE", 3)
    (moment,) = sick.turned()
    assert (moment.state, moment.drain) == (WARNING, "") and "2 times" in moment.words
    machine.errors(2)
    (memory,) = sick.turned()
    assert memory.drain == "rankscope: memory/ecc-errors mc0/DIMM_A1" and "2 errors" in memory.words
    assert sick.turned() == ()
    sick.close()


def test_what_is_down_or_wrong_at_the_start_is_nothing_new(tmp_path: Path) -> None:
    machine, sick = Machine(tmp_path), Sick(tmp_path)
    machine.link("1: DOWN", 5)
    machine.errors(9)
    assert sick.turned() == sick.turned() == ()
    sick.close()


def test_a_host_without_any_of_it_is_well(tmp_path: Path) -> None:
    assert Sick(tmp_path).turned() == ()


SUSPECT: dict[str, Any] = {
    "component": "gpu", "cause": "ecc-errors", "instance": "gpu2", "host": "b", "ranks": [3], "lost_seconds_per_step": 0.1, "function": None
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "rankscope: gpu/ecc-errors gpu2"),
        ({"cause": "slow"}, None),
        ({"component": "python", "cause": "slow-function"}, None),
        ({"host": ""}, None),
    ],
)
def test_a_verdict_on_broken_hardware_says_which_host_to_drain(change: dict[str, Any], expected: str | None) -> None:
    verdict = {"status": "fault", "notes": [], "suspects": [{**SUSPECT, **change}]}
    event = events.of_look(Seen(Alarm(AlarmKind.SLOWER, "job", 0.0, "slower"), verdict, "", 1.0), 0.0)
    content = event.as_json("a")
    assert content.get("drain_reason") == expected
    assert content.get("drain_host") == ("b" if expected else None)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [((), None), (("rankscope: gpu/lost gpu2",), None), (("rankscope: gpu/ecc-errors gpu2",), "a")],
    ids=["shows nothing", "shows something else", "shows it"],
)
def test_by_the_word_of_another_host_one_is_drained_only_for_what_its_own_window_shows(
    broken: tuple[str, ...], expected: str | None
) -> None:
    """Whoever can write where verdicts lie could else drain any host of the job."""
    verdict = {"status": "fault", "notes": [], "suspects": [{**SUSPECT, "host": "a"}]}
    seen = Seen(Alarm(AlarmKind.SLOWER, "job", 0.0, "slower"), verdict, "", 1.0, judged_by="b", broken=broken)
    content = events.of_look(seen, 0.0).as_json("a")
    assert content.get("drain_host") == expected
    assert ("drain_reason" in content) == (expected is not None)
