"""The PCI tree: who is near whom, and links that are degraded, on recorded trees."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hardware_trees import ethernet, ib, pci
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.probes.pci.devices import parse_aer, parse_speed, parse_width
from rankscope.probes.pci.sampler import PcieSampler
from rankscope.probes.pci.tree import nearest_nics, read_tree

GPU, NIC, NVME, BRIDGE = "0x030200", "0x020700", "0x010802", "0x060400"


def _host(root: Path) -> Path:
    """Two root complexes; below the first a switch with GPU 3b and mlx5_0, and beside it, below another port, mlx5_1 and GPU 5e;
    GPU 9b is alone below the second, on NUMA node 1 with mlx5_2."""
    switch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    for path in (
        "pci0000:3a/0000:3a:00.0",
        switch,
        f"{switch}/0000:3c:00.0",
        f"{switch}/0000:3c:01.0",
        "pci0000:3a/0000:3a:01.0",
    ):
        pci(root, path, BRIDGE)
    pci(root, f"{switch}/0000:3c:00.0/0000:3d:00.0", GPU)
    ib(root, "mlx5_0", pci(root, f"{switch}/0000:3c:01.0/0000:3e:00.0", NIC))
    ib(root, "mlx5_1", pci(root, "pci0000:3a/0000:3a:01.0/0000:5d:00.0", NIC))
    pci(root, "pci0000:3a/0000:5e:00.0", GPU)
    pci(root, "pci0000:9a/0000:9a:00.0", BRIDGE, numa_node="1")
    pci(root, "pci0000:9a/0000:9a:00.0/0000:9b:00.0", GPU, numa_node="1")
    ib(root, "mlx5_2", pci(root, "pci0000:9c/0000:9c:00.0", NIC, numa_node="1"))
    ethernet(root, "eth0", pci(root, "pci0000:9a/0000:9a:00.0/0000:9d:00.0", "0x020000", numa_node="1"))
    pci(root, "pci0000:9c/0000:9e:00.0", NVME, numa_node="1")
    pci(root, "pci0000:9c/0000:9f:00.0", "0x0c0330")
    return root


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("0000:3d:00.0", ("mlx5_0",)),
        ("0000:5e:00.0", ("mlx5_1", "mlx5_0")),
        ("0000:9b:00.0", ("mlx5_2",)),
        ("0000:ff:00.0", ()),
    ],
)
def test_the_nearest_nic_of_a_gpu(tmp_path: Path, gpu: str, expected: tuple[str, ...]) -> None:
    assert sorted(nearest_nics(gpu, _host(tmp_path))) == sorted(expected)


def test_without_infiniband_ethernet_is_near(tmp_path: Path) -> None:
    pci(tmp_path, "pci0000:00/0000:00:05.0", GPU, numa_node="-1")
    ethernet(tmp_path, "eth0", pci(tmp_path, "pci0000:00/0000:00:03.0", "0x020000", numa_node="-1"))
    assert nearest_nics("0000:00:05.0", tmp_path) == ("eth0",)


def test_the_tree_has_what_matters_and_the_bridges_above_it(tmp_path: Path) -> None:
    tree = read_tree(_host(tmp_path))
    kinds = {node.address: node.kind for node in tree.nodes}
    assert kinds["0000:3c:00.0"] == "bridge" and kinds["0000:9e:00.0"] == "nvme" and "0000:9f:00.0" not in kinds
    assert tree.below("0000:3b:00.0") == ("0000:3d:00.0", "0000:3e:00.0")
    node = tree.node("0000:3d:00.0")
    assert node is not None and node.above == ("0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0")


def test_a_host_without_a_pci_bus_has_an_empty_tree(tmp_path: Path) -> None:
    assert read_tree(tmp_path).nodes == () and nearest_nics("0000:3b:00.0", tmp_path) == ()


def test_links_and_errors_over_a_window(tmp_path: Path) -> None:
    gpu = pci(tmp_path, "pci0000:00/0000:07:00.0", GPU, speed="2.5 GT/s PCIe")
    nic = pci(tmp_path, "pci0000:00/0000:0b:00.0", NIC, width="8", aer_dev_correctable="BadTLP 3\nTOTAL_ERR_COR 3")
    pci(tmp_path, "pci0000:00/0000:0d:00.0", NVME, current_link_width="255", max_link_speed="Unknown")
    sampler = PcieSampler(hz=13.0, root=tmp_path)
    sampler.start()
    time.sleep(0.3)
    (gpu / "current_link_speed").write_text("32.0 GT/s PCIe\n")
    time.sleep(0.3)
    (gpu / "current_link_width").write_text("4\n")
    (nic / "aer_dev_correctable").write_text("BadTLP 13\nTOTAL_ERR_COR 14\n")
    time.sleep(0.3)
    found = {device.address: device for device in sampler.stop().devices}
    one = found["0000:07:00.0"]
    assert (one.speed_gts, one.speed_limit_gts, one.width, one.width_limit, one.width_least) == (32.0, 32.0, 16, 16, 4)
    other = found["0000:0b:00.0"]
    assert (other.width, other.width_limit, other.correctable, other.fatal) == (8, 16, 11, 0)
    sleeping = found["0000:0d:00.0"]
    assert (sleeping.width, sleeping.speed_limit_gts, sleeping.kind) == (None, None, "nvme")


@given(st.text(max_size=200))
@example("000000016000")
def test_any_text_of_a_pci_file_is_a_number_or_nothing(text: str) -> None:
    assert parse_aer(text) >= 0
    assert (parse_speed(text) or 1.0) > 0
    assert parse_width(text) is None or 0 < (parse_width(text) or 0) <= 64
