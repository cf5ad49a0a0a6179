"""Parts of the sweep by themselves: who is waited for, whose a rank is, what a hook gets, what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import CHECKS, NOW_S, host, look, look_all, nic, process, put, remember, state_of, with_gpus

from rankscope.diagnose.sweep import hook
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Context, Earlier
from rankscope.diagnose.sweep.engine import Sweep, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.output import as_prometheus, as_text
from rankscope.diagnose.sweep.readings.filesystems import Mount, _usage
from rankscope.diagnose.sweep.readings.kernel_stacks import waits_for
from rankscope.diagnose.sweep.readings.training import claims
from rankscope.probes.gpu.nvml import Gpu, NvLink

MODULES = {
    "the NVIDIA driver": "nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem", "the AMD GPU driver": "amdgpu",
    "a request to an NFS server": "sunrpc", "a request to a Lustre server": "ptlrpc lnet ko2iblnd ksocklnd",
    "a request to a Ceph server": "libceph", "a request to an SMB server": "cifs",
    "an RDMA driver": "mlx5_core mlx5_ib ib_core rdma_cm",
    "a disk": "nvme nvme_core nvme_rdma nvme_tcp scsi_mod sd_mod md_mod",
}  # fmt: skip
BUILT_IN = {
    "rpc_wait": "a request to an NFS server", "xprt_wait": "a request to an NFS server", "nvidia_poll": "the NVIDIA driver",
    "uvm_free": "the NVIDIA driver", "ptlrpc_set_wait": "a request to a Lustre server", "mlx5_cmd": "an RDMA driver",
    "nvme_submit": "a disk", "scsi_wait": "a disk", "do_wait": "",
}  # fmt: skip
BLOCKS = ("blk_mq_get_tag", "blk_execute_rq", "submit_bio_wait")
OF_USERS = [
    "fuse_get_req",
    "handle_userfault",
    "__do_sys_vfork",
    "ptrace_stop",
    "__refrigerator",
    "do_flock",
    "fcntl_setlk",
    "posix_lock_wait",
]


@pytest.mark.parametrize(("module", "words"), [(one, words) for words, some in MODULES.items() for one in some.split()])
def test_what_waits_in_a_module_waits_for_what_that_drives(module: str, words: str) -> None:
    assert waits_for([("schedule", ""), ("f", module)]) == words
    assert waits_for([("f", f"{module}x")]) == ""


@pytest.mark.parametrize("function", BUILT_IN)
def test_what_is_built_in_is_known_by_the_names_of_its_functions(function: str) -> None:
    assert waits_for([(function, "")]) == BUILT_IN[function]


@pytest.mark.parametrize("function", BLOCKS)
def test_a_block_device_is_a_disk_where_none_can_be_a_users(function: str) -> None:
    assert (waits_for([(function, "")]), waits_for([(function, "")], True)) == ("", "a disk")


@pytest.mark.parametrize("function", OF_USERS)
def test_what_a_user_decides_is_nobody_elses_fault(function: str) -> None:
    assert waits_for([("f", "nvme"), (function, "")]) == ""


@pytest.mark.parametrize(
    ("environ", "launcher", "rank"),
    [
        ("TORCHELASTIC_RUN_ID=a\0RANK=3\0", "torchrun", "3"),
        ("SLURM_STEP_ID=1\0SLURM_PROCID=4\0", "Slurm", "4"),
        ("PMIX_NAMESPACE=x\0OMPI_COMM_WORLD_RANK=5\0", "Open MPI", "5"),
        ("OMPI_COMM_WORLD_RANK=6\0", "Open MPI", "6"),
    ],
)
def test_ranks_of_each_launcher_are_known(tmp_path: Path, environ: str, launcher: str, rank: str) -> None:
    host(tmp_path, {**process(7, "S", 5, environ=environ), **process(8, "S", 5, environ="RANK=3\0")})
    assert [(one.pid, one.launcher, one.rank) for one in claims(tmp_path, (7, 8)).ranks] == [(7, launcher, rank)]


KEPT = (
    "NODE_NAME",
    "SLURMD_NODENAME",
    "SLURM_CONF",
    "KUBECONFIG",
    "SCONTROL",
    "KUBECTL",
    "RANKSCOPE_X",
    "KUBERNETES_SERVICE_HOST",
)


def test_a_hook_is_given_what_finds_its_cluster_and_nothing_else() -> None:
    given = dict.fromkeys((*KEPT, "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "PATH"), "x")
    kept = hook.environment(given, {"host": "node-7", "summary": {"state": "critical"}})
    assert kept == {
        **dict.fromkeys(KEPT, "x"), "PATH": hook.PATH, "LANG": "C.UTF-8", "RANKSCOPE_HOST": "node-7", "RANKSCOPE_STATE": "critical",
    }  # fmt: skip


def test_files_that_are_no_more_to_be_had_count_like_room() -> None:
    mount = Mount.__new__(Mount)
    full, none = _usage(mount, b"4096 100 50 50 1000 10"), _usage(mount, b"4096 100 50 50 0 0")
    assert (full.used_percent, full.inodes_percent, none.inodes_percent) == (50.0, 99.0, 0.0)


GPU = Gpu(0, uuid="GPU-a", bus="00000000:3b:00.0", name="H100")


@pytest.mark.parametrize(
    ("links", "why"),
    [((NvLink(0, True, 0), NvLink(3, False, 0)), "links 3 are down"), ((NvLink(0, True, 0),), "links are missing")],
)
def test_links_that_are_down_are_named(tmp_path: Path, links: tuple[NvLink, ...], why: str) -> None:
    well = replace(GPU, links=(NvLink(0, True, 0), NvLink(3, True, 0)))
    found = look(with_gpus(host(tmp_path), well, replace(GPU, index=1, uuid="GPU-b", links=links)), "nvlink.down")
    assert [one.why for one in found if one.instance == "gpu1"] == [why]


@pytest.mark.parametrize(("action", "words"), [(1, ""), (97, "action 97"), (-1, "action -1")])
def test_a_recommendation_that_is_not_known_yet_is_critical_by_its_number(
    tmp_path: Path, action: int, words: str
) -> None:
    (one,) = look(with_gpus(host(tmp_path), replace(GPU, recovery_action=action)), "gpu.recovery")
    assert one.state == "critical" and (one.value == words if words else not str(one.value).startswith("action"))


@pytest.mark.parametrize("seen", [True, False])
def test_why_a_file_system_should_be_writable_is_said(tmp_path: Path, seen: bool) -> None:
    host(tmp_path, {"etc/fstab": "/dev/sda1 / ext4 rw 0 1\n"})
    known = remember(look_all(tmp_path, "disk.readonly")) if seen else Earlier()
    put(tmp_path, {"proc/self/mountinfo": "21 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n"})
    (one,) = look(tmp_path, "disk.readonly", known)
    assert one.why == ("it was writable in an earlier sweep" if seen else "/etc/fstab mounts it writable")


def _all_states(root: Path) -> Sweep:
    def run(context: Context) -> Iterator[Finding]:
        yield context.ok("here", 1.5, "so it is", instance="a", unit="V")
        yield context.judged(2.0, 1.0, 3.0, "here", what="level", why="high", action="Lower it.", instance="b")
        yield context.judged(
            4.0, 1.0, 3.0, "here", what="level", why="high", action="Lower it.", instance="c", unit="V"
        )
        raise ValueError("odd")

    return sweep([replace(CHECKS["disk.slow"], run=run)], Config(), Earlier(), host(root), NOW_S)


def test_a_check_that_fails_says_with_what_and_keeps_what_it_found(tmp_path: Path) -> None:
    done = _all_states(tmp_path)
    assert [one.state for one in done.findings] == ["ok", "warning", "critical", "unknown"]
    assert [one.expected for one in done.findings[1:3]] == ["level at most 1", "level at most 1 V"]
    assert "ValueError: odd" in done.findings[3].why and state_of(done.findings) == "critical"


def test_all_that_is_well_is_printed_to_who_asks_for_it(tmp_path: Path) -> None:
    text = {verbose: "\n".join(as_text(_all_states(tmp_path), verbose)) for verbose in (True, False)}
    assert "so it is" in text[True] and "so it is" not in text[False]
    assert all(
        word in text[False]
        for word in ("CRITICAL", "critical: node-7: 1 critical, 1 warning, 1 unknown, 1 ok findings of ")[1:]
    )


def test_each_state_has_its_number_in_the_metrics(tmp_path: Path) -> None:
    states = [
        line for line in as_prometheus(_all_states(tmp_path)).splitlines() if line.startswith("rankscope_sweep_state{")
    ]
    said = {line.partition('device="')[2].partition('"')[0]: line[-1] for line in states}
    assert said == {"a": "0", "b": "1", "c": "2", "": "3"}


def test_interfaces_are_read_as_far_as_checks_want(tmp_path: Path) -> None:
    done = look_all(host(tmp_path, nic("eth0")), "net.errors")
    assert {key for _, key, _ in done.counters} == {
        f"eth0.{name}" for name in ("rx_packets", "tx_packets", "rx_errors", "rx_crc_errors")
    }
