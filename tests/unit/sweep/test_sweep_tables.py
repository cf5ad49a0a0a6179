"""Tables of the sweep: each row stands for something of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_trees import host, killed_as_it_renames, process

from rankscope.diagnose.sweep.config import line_of
from rankscope.diagnose.sweep.owed import OF_GROWTH
from rankscope.diagnose.sweep.readings import kernel_events
from rankscope.diagnose.sweep.readings.filesystems import is_network
from rankscope.diagnose.sweep.readings.training import claims
from rankscope.diagnose.sweep.spare import Spare
from rankscope.diagnose.sweep.store import Point
from rankscope.diagnose.sweep.trends import trends

DAY_S = 86_400.0


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "fuse.sshfs", "9p", "wekafs", "glusterfs", "afs", "virtiofs"],
)  # fmt: skip
def test_file_systems_whose_server_is_elsewhere_are_known(kind: str) -> None:
    assert is_network(kind) and not is_network(f"x{kind}")


def test_errors_that_show_in_one_sweep_alone_are_owed_to_the_hook() -> None:
    assert sorted(OF_GROWTH) == ["cpu.mce", "gpu.ecc", "ib.flap", "mem.ecc", "pcie.aer"]


def test_families_of_events_are_apart() -> None:
    families = {name: {one.family for one in kernel_events.PATTERNS if one.name == name} for name in (
        "fs-error", "uncorrected-error", "remounted-readonly", "mlx5-temperature", "nfs-timeout")}  # fmt: skip
    assert list(families.values()) == [{"io"}, {"mce"}, {"readonly"}, {"other"}, {"other"}]
    assert {one.family for one in kernel_events.PATTERNS} == {"io", "mce", "oom", "readonly", "other"}


def test_a_rank_that_only_pmix_knows_is_no_rank_without_its_number(tmp_path: Path) -> None:
    with_number = "PMIX_NAMESPACE=x\0SLURM_PROCID=5\0"
    host(tmp_path, {**process(7, "S", 5, environ=with_number), **process(8, "S", 5, environ="SLURM_PROCID=5\0")})
    assert [(one.pid, one.launcher) for one in claims(tmp_path, (7, 8)).ranks] == [(7, "Open MPI")]


@pytest.mark.parametrize(
    ("unit", "before", "recent", "kind"),
    [
        ("errors/h", 10.0, 19.9, ""),
        ("errors/h", 10.0, 20.1, "trend.rate"),
        ("errors/h", 0.1, 0.9, ""),
        ("errors/h", 0.1, 1.1, "trend.rate"),
        ("°C", 40.0, 47.9, ""),
        ("°C", 40.0, 48.1, "trend.temperature"),
    ],
)
def test_a_trend_is_a_rate_that_doubles_above_one_an_hour_or_a_climb_of_eight_degrees(
    unit: str, before: float, recent: float, kind: str
) -> None:
    points = [Point(0.0, "a.b", "x", "ok", before, unit), Point(6 * DAY_S, "a.b", "x", "ok", recent, unit)]
    assert "".join(one.id for one in trends(points, 7 * DAY_S)) == kind


def test_the_line_of_a_section_is_its_header() -> None:
    text = "[sweep]\nconfirm_s = 1\n\n[check.'disk.full']\npercent = 3\n[other]\nx = 1\n"
    assert [line_of(text, keys) for keys in (
        ("sweep",), ("check", "disk.full"), ("check", "disk.full", "percent"), ("check", "disk.full", "none"), ("check",), ("none",)
    )] == [1, 4, 5, 4, 4, 0]  # fmt: skip


def test_what_a_killed_sweep_left_beside_the_copy_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Spare(tmp_path)
    assert spare.write(1.0, {("a", "b"): "c"}) == ""
    killed_as_it_renames(lambda: spare.write(2.0, {("a", "b"): "c"}), monkeypatch)
    assert len(list(tmp_path.iterdir())) == 2
    spare.clear()
    assert list(tmp_path.iterdir()) == []
