"""Sweeps of many hosts: which files are read, what is refused, and which value is odd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.sweep.output import SCHEMA
from rankscope.diagnose.sweep.peers import HostSweep, odd_ones, parse_sweep, read_sweeps
from rankscope.probes.base.errors import BadData, NoSuchPlace

FINDING = {"id": "disk.errors", "instance": "sda", "value": 3}


def said(**parts: Any) -> bytes:
    """The JSON of a sweep, with some parts of it in place of what they are."""
    whole = {"schema": SCHEMA, "host": "a", "time": "2026-01-01", "summary": {"state": "ok"}, "findings": [FINDING]}
    return json.dumps(whole | parts).encode()


def hosts(values: Mapping[str, float | str | None], check: str = "cpu.clock") -> list[HostSweep]:
    return [HostSweep(host, "ok", {(check, "one"): value}) for host, value in values.items()]


def test_files_and_folders_are_read_and_the_newest_of_a_host_counts(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/old.json").write_bytes(said(time="2026-01-01"))
    (tmp_path / "folder/new.json").write_bytes(said(time="2026-01-02", findings=[FINDING | {"value": 9}]))
    (tmp_path / "alone.json").write_bytes(said(host="b"))
    (tmp_path / "bad.json").write_text("{}")
    sweeps, notes = read_sweeps([tmp_path / "folder", tmp_path / "alone.json", tmp_path / "bad.json"])
    assert [(one.host, one.values) for one in sweeps] == [
        ("a", {("disk.errors", "sda"): 9.0}),
        ("b", {("disk.errors", "sda"): 3.0}),
    ]
    assert notes == (f"bad.json: not {SCHEMA}",)


def test_a_place_without_a_sweep_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoSuchPlace, match="no such file or folder"):
        read_sweeps([tmp_path / "none"])
    with pytest.raises(BadData) as empty:
        read_sweeps([tmp_path])
    assert str(empty.value) == "no sweep could be read"
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BadData, match=r"no sweep could be read: bad\.json: "):
        read_sweeps([tmp_path])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (said(host=""), "parts are missing"),
        (said(findings={}), "parts are missing"),
        (said(summary={"state": "fine"}), "unknown state"),
        (said(findings=[{"id": "a"}]), "a finding without id or instance"),
        (said(findings=[FINDING | {"value": True}]), "a value of the wrong kind"),
        (said(findings=[FINDING | {"value": [1]}]), "a value of the wrong kind"),
        (said(findings=[FINDING | {"value": float("nan")}]), "a value that is not finite"),
        (said(findings=[FINDING | {"value": 10**400}]), "a value that is not finite"),
    ],
    ids=lambda one: one if isinstance(one, str) else "data",
)
def test_what_is_no_sweep_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$"):
        parse_sweep(data)


def test_a_number_is_odd_from_four_deviations_on() -> None:
    # GIVEN 20 hosts of which half have 99 and half 101: a robust deviation of 1.5, less than the floor of 5
    near = {f"n{number}": 99.0 + 2 * (number % 2) for number in range(20)}
    assert odd_ones(hosts(near | {"far": 119.0})) == ()
    (found,) = odd_ones(hosts(near | {"far": 130.0}))
    assert (found.host, found.value, found.others, found.hosts) == ("far", "130", "101", 20) and found.z > 5


def test_numbers_that_are_zero_on_all_hosts_but_one_are_odd_there() -> None:
    (found,) = odd_ones(hosts({f"n{number}": 0.0 for number in range(9)} | {"far": 7.0}))
    assert (found.host, found.z) == ("far", 7.0)


@pytest.mark.parametrize(
    "check", ["disk.full", "disk.slow", "mem.pressure", "os.limits", "os.kmsg", "fs.stuck", "job.orphans"]
)
def test_numbers_that_differ_between_healthy_hosts_are_not_compared(check: str) -> None:
    values = {f"n{number}": 5.0 for number in range(9)} | {"far": 90.0}
    assert odd_ones(hosts(values, check)) == ()
    assert [one.host for one in odd_ones(hosts(values, "net.errors"))] == ["far"]


def test_what_may_be_chance_among_many_comparisons_is_no_odd_one() -> None:
    # GIVEN 4.05 deviations, which one host in 20,000 has, among 400 hosts with 100 values each
    sweeps = [HostSweep(f"n{number}", "ok", {}) for number in range(400)]
    for number, sweep in enumerate(sweeps):
        for value in range(100):
            sweep.values["net.errors", str(value)] = 1000.0 + 67.449 * (1 if number % 2 else -1)
    sweeps[0].values["net.errors", "0"] = 1000.0 + 67.449 + 405.0
    assert odd_ones(sweeps) == ()
    sweeps[0].values["net.errors", "0"] = 2000.0
    assert [one.instance for one in odd_ones(sweeps)] == ["0"]
