"""A host has a name that it keeps when it is called otherwise."""

from __future__ import annotations

from pathlib import Path

from rankscope.observer.tables.job import device_ids
from rankscope.observer.tables.reading import HardwareReading
from rankscope.probes.host.machine import machine_id


def tree(root: Path, product: str = "", machine: str = "") -> Path:
    for name, text in (("sys/class/dmi/id/product_uuid", product), ("etc/machine-id", machine)):
        if text:
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(text)
    return root


def test_the_firmwares_name_comes_first_and_is_not_told(tmp_path: Path) -> None:
    both = machine_id(tree(tmp_path / "a", "4C4C4544-0042-3510-8054-B4C04F4D3032\n", "9f0c\n"))
    alone = machine_id(tree(tmp_path / "b", "4c4c4544-0042-3510-8054-b4c04f4d3032\n"))
    assert both == alone != ""
    assert "4c4c4544" not in both


def test_boards_that_were_given_no_name_are_told_by_their_installation(tmp_path: Path) -> None:
    shared = "03000200-0400-0500-0006-000700080009"
    one = machine_id(tree(tmp_path / "a", shared, "9f0c"))
    other = machine_id(tree(tmp_path / "b", shared, "77aa"))
    assert one != other != ""


def test_a_host_without_any_has_none(tmp_path: Path) -> None:
    assert machine_id(tmp_path) == ""


def test_a_rank_without_gpus_has_no_ids() -> None:
    assert device_ids(HardwareReading(), 4711) == ""
