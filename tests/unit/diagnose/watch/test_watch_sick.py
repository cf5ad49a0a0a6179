"""Hardware that turns bad while the service runs, and what is said to whoever drains hosts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.service import events
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.looks.look import Seen
from rankscope.diagnose.service.sick import Sick
from rankscope.diagnose.service.tell import hooks
from rankscope.diagnose.service.xid_events import XidEvents
from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.probes.gpu.xid import LoggedXid


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class Machine:
    """One port and one memory controller, as files of a root of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = root / "sys/class/infiniband/mlx5_3/ports/1"
        (self.port / "counters").mkdir(parents=True, exist_ok=True)
        self.memory = root / "sys/devices/system/edac/mc/mc0"
        (self.memory / "dimm0").mkdir(parents=True, exist_ok=True)
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
    machine, now = Machine(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    assert sick.turned() == sick.turned() == ()
    machine.link("1: DOWN", 1)
    (lost,) = sick.turned()
    assert (lost.state, lost.drain) == (WARNING, "")
    now.s += 5
    assert sick.turned() == ()
    now.s += 5
    (down,) = sick.turned()
    assert (down.state, down.drain) == (CRITICAL, "rankscope: nic/down mlx5_3")
    now.s += 60
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


def test_a_port_that_is_switched_off_while_a_drain_for_it_is_owed_is_well(tmp_path: Path) -> None:
    machine, now = Machine(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    (machine.port / "phys_state").write_text("5: LinkUp\n")
    sick.turned()
    machine.link("1: DOWN", 1)
    (machine.port / "phys_state").write_text("2: Polling\n")
    sick.turned()
    now.s += 10
    (down,) = sick.turned()
    (machine.port / "phys_state").write_text("3: Disabled\n")
    (off,) = sick.turned()
    assert (off.state, off.component, off.cause, off.instance) == (OK, down.component, down.cause, down.instance)
    assert sick.turned() == ()
    sick.close()


def lost_for_good(sick: Sick, machine: Machine, now: Clock) -> None:
    """A drain for its link is owed from now on."""
    assert sick.turned() == ()
    machine.link("1: DOWN", 1)
    assert [one.state for one in sick.turned()] == [WARNING]
    now.s += 10
    assert [one.drain for one in sick.turned()] == ["rankscope: nic/down mlx5_3"]


def test_a_port_that_was_away_at_a_search_and_comes_back_with_its_link_is_well(tmp_path: Path) -> None:
    machine, now = Machine(tmp_path), Clock()
    sick = Sick(tmp_path, sought_again=1, clock=now)
    lost_for_good(sick, machine, now)
    # GIVEN a driver that is loaded anew
    shutil.move(machine.port.parents[1], tmp_path / "away")
    assert sick.turned() == sick.turned() == ()
    shutil.move(tmp_path / "away", machine.port.parents[1])
    # WHEN it comes back THEN what is owed is over as soon as it has its link, and not before
    assert sick.turned() == sick.turned() == ()
    machine.link("4: ACTIVE", 1)
    assert [(one.state, one.instance) for one in sick.turned()] == [(OK, "mlx5_3")]
    assert sick.turned() == ()
    # and it is told anew when it goes again
    lost_for_good(sick, machine, now)
    shutil.move(machine.port.parents[1], tmp_path / "away")
    assert sick.turned() == ()
    shutil.move(tmp_path / "away", machine.port.parents[1])
    machine.link("4: ACTIVE", 1)
    assert [one.state for one in sick.turned()] == [OK]
    sick.close()


@pytest.mark.parametrize(("how", "states"), [
    ("given to a virtual machine", [OK]), ("in a pod", [OK]), ("under another name", [OK]), ("dead", []),
    ("off the bus", []), ("its driver is loaded anew", []), ("half of its driver is", []),
])  # fmt: skip
def test_a_drain_is_over_for_a_port_that_was_given_away_and_not_for_a_card_that_died(
    tmp_path: Path, how: str, states: list[str]
) -> None:
    machine, now = RoceCard(tmp_path), Clock()
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").symlink_to(machine.card)
    (machine.card / "config").write_bytes(b"\xb3\x15\x21\x10")
    (machine.card / "infiniband/mlx5_3").mkdir(parents=True)
    sick = Sick(tmp_path, sought_again=1, clock=now)
    lost_for_good(sick, machine, now)
    if how == "under another name":
        machine.port.parents[1].rename(machine.port.parents[2] / "rocep59s0")
    else:
        shutil.rmtree(machine.port.parents[1])
    shutil.rmtree(machine.interface)
    if how not in ("in a pod", "under another name"):
        shutil.rmtree(machine.card / "infiniband")
    if how == "half of its driver is":
        (machine.card / "net/eth0").mkdir(parents=True)
    if how == "given to a virtual machine":
        (machine.card / "driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    elif how == "dead":
        (machine.card / "config").write_bytes(b"\xff" * 4)
    elif how == "off the bus":
        (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").unlink()
    assert [(one.state, one.instance) for one in sick.turned()] == [(state, "mlx5_3") for state in states]
    assert sick.turned() == ()
    sick.close()


def test_a_link_that_comes_back_in_time_drains_nobody(tmp_path: Path) -> None:
    machine, now = Machine(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    sick.turned()
    for _ in range(3):
        machine.link("1: DOWN", 1)
        now.s += 5
        assert [one.state for one in sick.turned()] == [WARNING]
        machine.link("4: ACTIVE", 1)
        now.s += 5
        assert [one.state for one in sick.turned()] == [OK]
    sick.close()


def test_a_port_that_waits_for_its_subnet_manager_has_a_while_to(tmp_path: Path) -> None:
    machine, now = Machine(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    sick.turned()
    machine.link("2: INIT", 1)
    for passed_s, expected in ((0, [WARNING]), (60, []), (30, []), (40, [CRITICAL])):
        now.s += passed_s
        assert [one.state for one in sick.turned()] == expected
    sick.close()


def test_a_port_that_somebody_switches_off_is_not_sick(tmp_path: Path) -> None:
    machine, now = Machine(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    (machine.port / "phys_state").write_text("5: LinkUp\n")
    sick.turned()
    machine.link("1: DOWN", 1)
    (machine.port / "phys_state").write_text("3: Disabled\n")
    for _ in range(4):
        assert sick.turned() == ()
        now.s += 20
    sick.close()


class RoceCard(Machine):
    """A RoCE port and its interface on one function of a card."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (self.port / "link_layer").write_text("Ethernet\n")
        self.card = root / "sys/devices/pci0000:00/0000:3b:00.0"
        self.card.mkdir(parents=True)
        self.interface = root / "sys/class/net/eth0"
        self.interface.mkdir(parents=True)
        for one in (self.interface, self.port.parents[1]):
            (one / "device").symlink_to(self.card)
        self.runs("0x1003", "1")

    def runs(self, flags: str, carrier: str) -> None:
        """As mlx5 and others say it: Disabled whenever there is no carrier."""
        (self.interface / "flags").write_text(f"{flags}\n")
        (self.interface / "carrier").write_text(carrier)
        (self.port / "phys_state").write_text("5: LinkUp\n" if carrier == "1" else "3: Disabled\n")
        self.link("4: ACTIVE" if carrier == "1" else "1: DOWN", 0)


def test_a_roce_port_whose_cable_was_pulled_is_sick(tmp_path: Path) -> None:
    machine, now = RoceCard(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    assert sick.turned() == ()
    machine.runs("0x1003", "0")
    told = []
    for _ in range(4):
        told += sick.turned()
        now.s += 5
    assert [(one.state, one.drain) for one in told] == [(WARNING, ""), (CRITICAL, "rankscope: nic/down mlx5_3")]
    machine.runs("0x1003", "1")
    assert [one.state for one in sick.turned()] == [OK]
    sick.close()


@pytest.mark.parametrize("how", ["switched off", "in a pod"])
def test_a_roce_port_that_is_switched_off_or_in_a_pod_is_not_sick(tmp_path: Path, how: str) -> None:
    machine, now = RoceCard(tmp_path), Clock()
    sick = Sick(tmp_path, clock=now)
    assert sick.turned() == ()
    machine.runs("0x1002", "")
    if how == "in a pod":
        shutil.rmtree(machine.interface)
    for _ in range(4):
        assert sick.turned() == ()
        now.s += 20
    sick.close()


def test_a_virtual_function_without_a_link_drains_nobody(tmp_path: Path) -> None:
    machine, now = RoceCard(tmp_path), Clock()
    (machine.card / "physfn").mkdir()
    sick = Sick(tmp_path, clock=now)
    assert sick.turned() == ()
    machine.runs("0x1003", "0")
    for expected in ([WARNING], [], [], []):
        assert [one.state for one in sick.turned()] == expected
        now.s += 20
    sick.close()


def test_an_interface_that_is_switched_off_or_comes_back_from_a_pod_so_is_not_sick(tmp_path: Path) -> None:
    """Then the kernel answers EINVAL where it is asked for the carrier."""
    now, card = Clock(), tmp_path / "sys/class/net/eth0"
    (card / "device").mkdir(parents=True)
    (card / "operstate").write_text("up\n")
    (card / "carrier").write_text("1\n")
    sick = Sick(tmp_path, sought_again=1, clock=now)
    assert sick.turned() == ()
    (card / "operstate").write_text("down\n")
    (card / "carrier").unlink()
    for _ in range(4):
        assert sick.turned() == ()
        now.s += 20
    # WHEN another one gets its name, without a link
    shutil.rmtree(card)
    assert sick.turned() == ()
    (card / "device").mkdir(parents=True)
    (card / "operstate").write_text("down\n")
    (card / "carrier").write_text("0\n")
    for _ in range(4):
        assert sick.turned() == ()
        now.s += 20
    sick.close()


def test_a_counter_that_cannot_be_read_for_once_has_not_grown(tmp_path: Path) -> None:
    machine, sick = Machine(tmp_path), Sick(tmp_path)
    machine.errors(9)
    assert sick.turned() == ()
    for gone in (machine.memory / "dimm0/dimm_ue_count", machine.memory):
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            gone.write_text("unreadable")
        assert sick.turned() == ()
        machine = Machine(tmp_path)
        machine.errors(9)
        assert sick.turned() == ()
    machine.errors(10)
    (grown,) = sick.turned()
    assert "1 errors" in grown.words
    sick.close()


def test_the_first_error_that_no_dimm_has_is_told(tmp_path: Path) -> None:
    machine, sick = Machine(tmp_path), Sick(tmp_path)
    assert sick.turned() == ()
    (machine.memory / "ue_count").write_text("1\n")
    (found,) = sick.turned()
    assert found.drain == "rankscope: memory/ecc-errors mc0"
    sick.close()


def test_what_is_down_or_wrong_at_the_start_is_nothing_new(tmp_path: Path) -> None:
    machine, sick = Machine(tmp_path), Sick(tmp_path)
    machine.link("1: DOWN", 5)
    machine.errors(9)
    assert sick.turned() == sick.turned() == ()
    sick.close()


def test_a_host_without_any_of_it_is_well(tmp_path: Path) -> None:
    assert Sick(tmp_path).turned() == ()


def xids(bus: str, number: int, count: int) -> list[LoggedXid]:
    return [LoggedXid(bus, number, 1.0)] * count


def test_of_a_crash_that_the_kernel_tells_line_by_line_one_event_a_minute_is_made() -> None:
    one = XidEvents()
    first = one.of([*xids("0000:3b:00", 13, 132), *xids("0000:5e:00", 13, 1)], 100.0)
    assert [event.details["bus"] for event in first] == ["0000:3b:00", "0000:5e:00"]
    assert {(event.state, event.user) for event in first} == {(WARNING, "applications")}
    assert one.of(xids("0000:3b:00", 13, 3), 159.0) == []
    (again,) = one.of([], 160.0)
    assert "(134 more in a minute)" in again.words
    assert one.of([], 400.0) == []
    assert len(one.of(xids("0000:3b:00", 13, 1), 401.0)) == 1


def test_a_broken_gpu_is_drained_at_its_first_line() -> None:
    one = XidEvents()
    (lost,) = one.of(xids("0000:3b:00", 79, 5), 100.0)
    assert (lost.state, lost.drain) == (CRITICAL, ("", "rankscope: gpu/xid 0000:3b:00 79"))
    (again,) = one.of([], 160.0)
    assert again.drain is None


def test_xids_of_programs_keep_no_alarm_of_another_user_from_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks.Hooks, "_start", lambda *_: (_ for _ in ()).throw(BlockingIOError(11, "not now")))
    waiting = hooks.Hooks("/hook")
    for number in range(10):
        waiting.tell({"kind": "alarm", "job": f"job{number}"}, WARNING, "user 1000")
    waiting.tell({"kind": "verdict", "job": "job1"}, WARNING, "user 1000")
    for number in range(132):
        (event,) = XidEvents().of(xids(f"0000:{number:02x}:00", 13, 1), 0.0)
        waiting.tell(event.as_json("host"), event.state, event.user)
    kinds = [told.content["kind"] for told in waiting._waiting]
    assert (kinds.count("alarm"), kinds.count("verdict")) == (10, 1)
    assert len(kinds) == hooks.WAITING_MOST


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
