"""Nobody without root can have a host drained: what any user can bring about is a warning at most."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import HOUR_S, NOW_S, host, look, look_all, process, put, remember, state_of, twice
from without_root import PYTHON

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.readings.filesystems import mounts, usages
from rankscope.diagnose.sweep.readings.kernel_events import logged_events
from rankscope.diagnose.sweep.readings.kernel_stacks import held
from rankscope.probes.host.procfs import read_stat

_libc = ctypes.CDLL(None, use_errno=True)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give it up")
NV = "[<0>] os_acquire_semaphore+0x2c/0x40 [nvidia]\n[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n"
FUSE = "[<0>] request_wait_answer+0x1/0x2 [fuse]\n[<0>] fuse_read+0x1/0x2 [fuse]\n[<0>] rpc_wait_bit_killable+0x1/0x2 [sunrpc]\n"
VFORK = "[<0>] kernel_clone+0x1af/0x3e0\n[<0>] __do_sys_vfork+0x43/0x70\n[<0>] do_syscall_64+0x71/0x280\n"


def stack(*frames: str) -> str:
    """/proc/PID/stack of functions, innermost first; a module follows its function."""
    return "".join(f"[<0>] {' '.join((name + '+0x1/0x2', *module))}\n" for name, *module in map(str.split, frames))


_PAGE = ("folio_wait_bit_common", "filemap_fault", "__do_fault", "__handle_mm_fault", "handle_mm_fault")
_OLD_PAGE = ("__lock_page", "filemap_fault", "__handle_mm_fault", "handle_mm_fault")
_ASKED = ("nvidia_unlocked_ioctl [nvidia]", "__x64_sys_ioctl", "do_syscall_64", "entry_SYSCALL_64_after_hwframe")
_X86 = ("exc_page_fault", "asm_exc_page_fault", "_copy_from_user")
_X86_OLD = ("__do_page_fault", "do_page_fault", "page_fault", "copy_user_enhanced_fast_string")
_ARM = (
    "do_page_fault",
    "do_translation_fault",
    "do_mem_abort",
    "el1_abort",
    "el1h_64_sync_handler",
    "__arch_copy_from_user",
)
_TAKEN = ("__get_user_pages", "__gup_longterm_locked", "pin_user_pages", "os_lock_user_pages [nvidia]")
_NFS = ("rpc_wait_bit_killable [sunrpc]", "nfs_readpage [nfs]", "filemap_fault", "handle_mm_fault")
# A driver asks a process for its memory: what waits for the page, and what is found to be waited for.
OF_MEMORY = {
    "a page is copied": (stack(*_PAGE, *_X86, *_ASKED), ""),
    "a page is copied, and all but the fault is inlined": (stack(*_PAGE[:2], *_X86[1:], *_ASKED), ""),
    "a page is copied, old kernel": (stack(*_OLD_PAGE, *_X86_OLD, *_ASKED), ""),
    "a page is copied, arm64": (stack(*_PAGE, *_ARM, *_ASKED), ""),
    "a page is copied, old arm64": (stack(*_OLD_PAGE, "do_page_fault", "do_mem_abort", "el1_da", *_ASKED), ""),
    "pages are taken": (stack(*_PAGE, *_TAKEN, *_ASKED), ""),
    "pages are taken, without the lock": (stack(*_PAGE[:1], "gup_fast_fallback", "mlx5_ib_reg_user_mr [mlx5_ib]"), ""),
    "the lock of the address space": (stack("rwsem_down_read_slowpath", "down_read", *_TAKEN[-1:], *_ASKED), ""),
    "the lock, in a fault": (stack("rwsem_down_read_slowpath", "down_read_killable", "lock_mm_and_find_vma", *_X86, *_ASKED), ""),
    "the page is on a file server": (stack(*_NFS, *_X86, *_ASKED), "a request to an NFS server"),
    "the page is the driver's": (stack("uvm_vm_fault [nvidia_uvm]", *_PAGE[2:], *_X86), "the NVIDIA driver"),
    "a part that the compiler made": (stack(*_PAGE[:1], "__get_user_pages.constprop.0", *_ASKED), ""),
}  # fmt: skip


@contextmanager
def of_nobody(script: str) -> Iterator[int]:
    """A program that runs without root; its process."""
    child = subprocess.Popen(
        [*PYTHON, "-c", script], user=65534, group=65534, extra_groups=[], cwd="/", start_new_session=True
    )
    try:
        yield child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def until_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 10
    while read_stat(pid).state != state:
        assert time.monotonic() < deadline, read_stat(pid)
        time.sleep(0.01)


# Between fork and exec the child of vfork(2) keeps its parent in state D for as long as it likes.
WAITS_FOR_ITS_CHILD = """
import ctypes
child = ctypes.PyDLL(None).vfork()
if child == 0:
    ctypes.PyDLL(None).sleep(60)
    ctypes.PyDLL(None)._exit(0)
"""
FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.PyDLL(None).syscall(60, 0) if __import__("os").uname().machine == "x86_64" else ctypes.PyDLL(None).syscall(93, 0)
"""


@ROOT_ONLY
def test_a_process_that_waits_for_its_child_in_state_d_is_never_critical(tmp_path: Path) -> None:
    with of_nobody(WAITS_FOR_ITS_CHILD) as pid:
        until_state(pid, "D")
        put(host(tmp_path), {f"proc/{pid}/stack": ""})
        for name in ("stat", "status", "stack", "wchan"):
            (tmp_path / f"proc/{pid}/{name}").write_bytes(Path(f"/proc/{pid}/{name}").read_bytes())
        # WHEN two sweeps see it, five minutes apart, and it has not run in between
        done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
        again = look(tmp_path, "fs.stuck", remember(done), NOW_S + 300, wait_s=0.01)
        waits = held(pid)
    # THEN it is said, but it speaks against nobody
    assert [(one.state, one.since_s) for one in again] == [("warning", NOW_S)]
    assert waits.seen and waits.by == "" and "no driver" in again[0].why


@ROOT_ONLY
def test_a_program_whose_first_thread_has_ended_is_no_dead_process(tmp_path: Path) -> None:
    with of_nobody(FIRST_THREAD_ENDS) as pid:
        until_state(pid, "Z")
        put(host(tmp_path), {"proc/driver/nvidia/version": "NVRM version\n"})
        for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            (tmp_path / f"proc/{pid}/task/{tid}").mkdir(parents=True)
            (tmp_path / f"proc/{pid}/task/{tid}/stat").write_bytes(Path(f"/proc/{pid}/task/{tid}/stat").read_bytes())
        (tmp_path / f"proc/{pid}/stat").write_bytes(Path(f"/proc/{pid}/stat").read_bytes())
        assert state_of(look(tmp_path, "os.zombie-gpu", wait_s=0.01)) == "ok"


def with_thread(pid: int, state: str, stack: str) -> dict[str, str]:
    """A second thread of a process."""
    stat = process(pid + 1, state, 1)[f"proc/{pid + 1}/stat"]
    return {f"proc/{pid}/task/{pid + 1}/stat": stat, f"proc/{pid}/task/{pid + 1}/stack": stack}


def test_a_process_that_the_driver_does_not_let_go_is_critical(tmp_path: Path) -> None:
    dead = {**process(7, "Z", 1), "proc/7/task/7/stat": process(7, "Z", 1)["proc/7/stat"], **with_thread(7, "D", NV)}
    host(tmp_path, {"proc/driver/nvidia/version": "NVRM version\n", **dead})
    seen = remember(look_all(tmp_path, "os.zombie-gpu", wait_s=0.01))
    (found,) = look(tmp_path, "os.zombie-gpu", seen, NOW_S + 300, wait_s=0.01)
    assert (found.state, found.instance) == ("critical", "python (7)") and "driver" in found.why
    # One that only calls itself so, and hangs in nothing of the driver, is not.
    put(tmp_path, {"proc/7/task/8/stack": VFORK, **process(11, "D", 1, "nvidia-smi"), "proc/11/task/11/stack": VFORK,
                   "proc/11/task/11/stat": process(11, "D", 1, "nvidia-smi")["proc/11/stat"]})  # fmt: skip
    assert state_of(look(tmp_path, "os.zombie-gpu", wait_s=0.01)) == "ok"


@pytest.mark.parametrize(("stack", "state"), [(NV, "critical"), (FUSE, "warning"), (VFORK, "warning"), ("", "warning")])
def test_only_what_hangs_in_the_host_is_critical(tmp_path: Path, stack: str, state: str) -> None:
    host(tmp_path, {**process(11, "D", 1, "cp"), "proc/11/stack": stack, "proc/11/wchan": "0"})
    done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
    assert state_of(look(tmp_path, "fs.stuck", remember(done), NOW_S + 300, wait_s=0.01)) == state


@pytest.mark.parametrize("case", OF_MEMORY)
def test_who_waits_for_a_page_of_the_process_waits_for_no_driver_that_wants_it(tmp_path: Path, case: str) -> None:
    text, by = OF_MEMORY[case]
    host(tmp_path, {**process(11, "D", 1, "cp"), "proc/11/stack": text})
    assert (held(11, root=tmp_path).by, held(11, root=tmp_path).seen) == (by, True)


def test_a_driver_that_waits_for_a_user_s_page_is_never_critical(tmp_path: Path) -> None:
    text, _ = OF_MEMORY["a page is copied"]
    dead = {**process(7, "Z", 1), "proc/7/task/7/stat": process(7, "Z", 1)["proc/7/stat"], **with_thread(7, "D", text)}
    host(
        tmp_path,
        {"proc/driver/nvidia/version": "NVRM version\n", **dead, **process(11, "D", 1, "cp"), "proc/11/stack": text},
    )
    assert state_of(look(tmp_path, "os.zombie-gpu", wait_s=0.01)) == "ok"
    done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
    assert state_of(look(tmp_path, "fs.stuck", remember(done), NOW_S + 300, wait_s=0.01)) == "warning"


def of_user(pid: int, user: int) -> dict[str, str]:
    """A process of a user that waits for its child."""
    files = {**process(pid, "D", 1, "harmless"), f"proc/{pid}/stack": VFORK}
    return {**files, f"proc/{pid}/status": f"Uid:\t{user}\t{user}\nvoluntary_ctxt_switches:\t7\n"}


def test_a_crowd_that_hangs_without_harm_hides_nobody(tmp_path: Path) -> None:
    # GIVEN many processes of one user, one of another with a higher number, and one that the driver keeps with the highest
    host(tmp_path, {**process(900, "D", 1, "cp"), "proc/900/stack": NV})
    for pid in range(100, 140):
        put(tmp_path, of_user(pid, 1000))
    put(tmp_path, of_user(800, 1001))
    done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
    told = look(tmp_path, "fs.stuck", remember(done), NOW_S + 300, wait_s=0.01)
    # THEN what is critical is told first, and somebody of each user
    assert len(told) == 20 and (told[0].instance, told[0].state) == ("cp (900)", "critical")
    assert "harmless (800)" in [one.instance for one in told]


def test_a_process_that_ran_since_the_last_sweep_does_not_hang_since_then(tmp_path: Path) -> None:
    host(tmp_path, {**process(11, "D", 1, "cp"), "proc/11/stack": NV})
    done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
    put(tmp_path, {"proc/11/status": "Name:\tcp\nTgid:\t11\nvoluntary_ctxt_switches:\t1009\n"})
    assert state_of(look(tmp_path, "fs.stuck", remember(done), NOW_S + 300, wait_s=0.01)) == "warning"


OF_A_USER = "30 21 0:40 / /home/u/mnt {0},relatime - fuse.sshfs host:/ {0},user_id=1000,group_id=1000\n"
OF_THE_HOST = (
    "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n30 21 0:40 / /data rw - fuse.s3 b rw,user_id=0,group_id=0\n"
)


def test_mounts_of_users_are_not_asked(tmp_path: Path) -> None:
    # Each that hangs would cost a second, and after three the mounts of the host would not be asked any more.
    host(tmp_path, {"proc/self/mountinfo": OF_THE_HOST + OF_A_USER.format("rw").replace("30 21 0:40", "31 21 0:41")})
    assert [mount.mount_point for mount in mounts(Context("disk.full", {}, tmp_path))] == ["/", "/data"]


def test_a_user_s_mount_that_became_read_only_is_nobody_s_business(tmp_path: Path) -> None:
    base = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    host(tmp_path, {"proc/self/mountinfo": base + OF_A_USER.format("rw")})
    assert state_of(twice(tmp_path, "disk.readonly", {"proc/self/mountinfo": base + OF_A_USER.format("ro")})) == "ok"


@pytest.mark.parametrize(
    "source",
    [
        "/dev/loop0",
        "/dev/loop0p1",
        "/dev/sr0",
        "/dev/ublkb0",
        "/dev/ublkb3p1",
        "/dev/nbd0p1",
        "/dev/rbd1",
        "/dev/mapper/theirs",
    ],
)
def test_a_device_that_a_user_attached_is_nobody_s_business(tmp_path: Path, source: str) -> None:
    base, errors = (
        "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n",
        f"sys/fs/ext4/{source.rpartition('/')[2]}/errors_count",
    )
    host(tmp_path, {"proc/self/mountinfo": f"{base}30 21 7:0 / /media/x rw - ext4 {source} rw\n", errors: "0\n"})
    # what is mapped lies on another mapped device, and that on a loop device
    if source == "/dev/mapper/theirs":
        put(tmp_path, {"sys/dev/block/7:0/slaves/dm-0/x": "", "sys/class/block/dm-0/slaves/loop0/x": ""})
    change = {"proc/self/mountinfo": f"{base}30 21 7:0 / /media/x ro - ext4 {source} ro\n", errors: "1\n"}
    found = twice(tmp_path, "disk.readonly", change)
    assert [(one.instance, one.state) for one in found] == [("/", "ok")]


SAYS = "3,1,99999000000,-;{0}\n"
OF_DM = (
    "EXT4-fs error (device {0}): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
    "XFS ({0}): Metadata corruption detected at xfs_agf_read_verify+0xd1/0x110 [xfs], xfs_agf block 0x1",
    "EXT4-fs ({0}): Remounting filesystem read-only",
    "BTRFS info (device {0} state E): forced readonly",
)


UPON = [
    ("dm-0", "sys/class/block/dm-0/slaves/dm-3/x sys/class/block/dm-3/slaves/loop0/x", "warning"),
    ("md127", "sys/class/block/md127/slaves/loop0p1/x", "warning"),
    ("md127p1", "sys/class/block/md127p1/x sys/class/block/md127/slaves/loop0/x", "warning"),
    ("dm-0", "", "warning"),  # it is gone
    ("dm-0", "sys/class/block/dm-0/slaves/sda2/x", "critical"),
    ("md127", "sys/class/block/md127/slaves/sda1/x sys/class/block/md127/slaves/sdb1/x", "critical"),
    ("sda1", "", "critical"),
]
OF_ARRAY = "md/raid1:{0}: Disk failure on loop0, disabling device."


@pytest.mark.parametrize(
    ("line", "device", "upon", "state"),
    [(line, *case) for case in UPON for line in (*OF_DM, *([OF_ARRAY] if case[0] == "md127" else []))],
)
def test_in_the_log_a_device_upon_one_that_a_user_attached_is_no_disk_of_the_host(
    tmp_path: Path, line: str, device: str, upon: str, state: str
) -> None:
    host(tmp_path, {"dev/kmsg": SAYS.format(line.format(device)), **dict.fromkeys(upon.split(), "")})
    (event,) = logged_events(Context("disk.errors", {}, tmp_path))
    assert (event.instance, event.state) == (device, state)


@pytest.mark.parametrize(("upon", "state"), [("sda2", "critical"), ("loop0", "ok")])
def test_a_mapped_file_system_that_the_kernel_made_read_only_is_known_by_its_own_name(
    tmp_path: Path, upon: str, state: str
) -> None:
    # GIVEN one whose number is no device's (btrfs), so that only the name of its map says what it is
    root = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    line = root + "30 21 0:45 / /data {0} - btrfs /dev/mapper/volume {0}\n"
    files = {"sys/class/block/dm-0/dm/name": "volume\n", f"sys/class/block/dm-0/slaves/{upon}/x": ""}
    host(tmp_path, {"proc/self/mountinfo": line.format("rw"), **files})
    change = {
        "proc/self/mountinfo": line.format("ro"),
        "dev/kmsg": SAYS.format("BTRFS info (device dm-0): forced readonly"),
    }
    found = twice(tmp_path, "disk.readonly", change)
    assert state_of(found) == state and len(found) == (2 if state == "critical" else 1)


_WRITES = ("submit_bio_wait", "blkdev_issue_flush", "ext4_sync_file [ext4]", "__x64_sys_fsync", "do_syscall_64")


@pytest.mark.parametrize(
    ("frames", "without", "beside"),
    [
        (_WRITES, "a disk", ""),
        (("blk_mq_get_tag", "__blk_mq_alloc_requests"), "a disk", ""),
        (("io_schedule_timeout", "nvme_submit_user_cmd [nvme_core]", *_WRITES), "a disk", "a disk"),
        (("__wait_for_common", "blk_execute_rq", "__scsi_execute [scsi_mod]"), "a disk", "a disk"),
    ],
)
def test_the_block_layer_speaks_of_no_disk_while_a_user_may_have_attached_one(
    tmp_path: Path, frames: tuple[str, ...], without: str, beside: str
) -> None:
    host(tmp_path, {**process(11, "D", 1, "cp"), "proc/11/stack": stack(*frames), "sys/block/loop0/size": "0\n"})
    assert held(11, root=tmp_path).by == without
    put(tmp_path, {"sys/block/loop1/loop/backing_file": "/home/u/image\n"})
    assert held(11, root=tmp_path).by == beside


def test_a_read_only_file_system_without_a_word_of_the_kernel_is_a_warning(tmp_path: Path) -> None:
    host(tmp_path)
    assert (
        state_of(twice(tmp_path, "disk.readonly", {"proc/self/mountinfo": "21 1 8:1 / / ro - ext4 /dev/sda1 ro\n"}))
        == "warning"
    )


@contextmanager
def mounted(kind: str, place: Path, options: str) -> Iterator[None]:
    assert _libc.mount(b"theirs", bytes(place), kind.encode(), 0, options.encode()) == 0, os.strerror(
        ctypes.get_errno()
    )
    try:
        yield
    finally:
        _libc.umount2(bytes(place), 2)  # MNT_DETACH


@contextmanager
def silent_server(place: Path) -> Iterator[None]:
    """A FUSE file system as fusermount mounts it for a user, whose server never answers."""
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        with mounted("fuse", place, f"fd={server},rootmode=40000,user_id=1000,group_id=1000,allow_other"):
            yield
    finally:
        os.close(server)


@ROOT_ONLY
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE")
@pytest.mark.parametrize("covered", ["home/disk", "home"])
def test_a_mount_that_a_user_has_covered_is_not_asked(tmp_path: Path, covered: str) -> None:
    disk = tmp_path / "home/disk"
    disk.mkdir(parents=True)

    def answers(context: Context) -> list[bool]:
        return [usage.answered for usage in usages(context) if usage.mount.mount_point == str(disk)]

    def host_itself() -> Context:
        return Context("fs.stuck", {})

    with mounted("tmpfs", disk, "size=256k"):
        # GIVEN a mount of the host that answers
        assert answers(host_itself()) == [True]
        early = host_itself()
        assert str(disk) in [mount.mount_point for mount in mounts(early)]
        # WHEN a user mounts over it, or over the folder that it is in, before the mounts are read and after
        with silent_server(tmp_path / covered):
            began = time.monotonic()
            # THEN nobody waits for the user
            assert answers(early) == [] and answers(host_itself()) == []
            assert time.monotonic() - began < 2


@ROOT_ONLY
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE")
@pytest.mark.parametrize(
    ("server", "state"),
    [
        ("", "critical"),
        ("setpriv --reuid 65534", "warning"),
        ("unshare --pid --fork", "warning"),
        ("unshare --user --map-root-user", "warning"),
    ],
)
def test_a_mount_of_root_s_that_a_user_serves_drains_no_host(tmp_path: Path, server: str, state: str) -> None:
    # GIVEN a FUSE file system that root mounted as a CSI driver does, and whose server, who never answers, is somebody else's
    tmp_path.chmod(0o755)
    place = tmp_path / "volume"
    place.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    with mounted("fuse", place, f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"):
        serving = subprocess.Popen([*server.split(), "sleep", "60"], pass_fds=(device,), start_new_session=True)
        os.close(device)
        try:
            # WHEN it did not answer in two sweeps
            early = look_all(Path("/"), "fs.stuck", wait_s=0.01)
            late = look(Path("/"), "fs.stuck", remember(early), wait_s=0.01, critical_s=0.0)
        finally:
            os.killpg(serving.pid, signal.SIGKILL)
            serving.wait()
    # THEN it is critical only where the host's own root serves it
    assert [one.state for one in late if one.instance == str(place)] == [state]


def test_a_mount_that_does_not_answer_is_critical_only_when_it_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankscope.diagnose.sweep.checks import fs_stuck
    from rankscope.diagnose.sweep.readings.filesystems import Usage

    host(tmp_path, {"proc/self/mountinfo": "21 1 0:40 / /data rw - nfs4 filer:/x rw\n"})
    monkeypatch.setattr(fs_stuck, "usages", lambda context, _: [Usage(mount, False) for mount in mounts(context)])
    done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
    assert [one.state for one in done.findings] == ["warning"]
    (again,) = look(tmp_path, "fs.stuck", remember(replace(done)), NOW_S + 300, wait_s=0.01)
    assert (again.state, again.since_s) == ("critical", NOW_S)


def test_what_any_user_can_use_up_is_a_warning_at_most(tmp_path: Path) -> None:
    # GIVEN a full disk, no memory, no file handles, no processes left, CPUs and a disk that are overrun, and the kernel's words for it
    host(tmp_path)
    put(tmp_path, {"dev/kmsg": "6,17,100000000000,-;VFS: file-max limit 100000 reached\n"})
    assert state_of(look(tmp_path, "os.kmsg")) == "warning"
    assert state_of(look(tmp_path, "disk.full", warning_percent=0.0, free_gb=1e9)) == "warning"
    used_up = {
        "os.limits": {"proc/sys/fs/file-nr": "100000 0 100000\n", "proc/loadavg": "9 9 9 1/99999 4\n"},
        "cpu.steal": {
            "proc/stat": "cpu  2000 0 1000 100000 0 0 0 900000 0 0\n"
        },  # a virtual machine whose quota is used up
        "disk.slow": {"proc/diskstats": "   8  0 sda 200 0 1600 9005000 100 0 800 50 0 100 100\n"},
        "mem.pressure": {"proc/pressure/memory": f"some total=7\nfull total={int(HOUR_S * 1e6)}\n"},
    }
    for identifier, change in used_up.items():
        assert state_of(twice(host(tmp_path / identifier), identifier, change)) == "warning", identifier
