"""Hosts and containers that keep something from root: a line says what, the exit code is the one for it, and nothing ends in a trace."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_rank
from installed import RANKSCOPE

pytestmark = pytest.mark.beside

PORT = 29_776
# A filter of system calls, as a container's profile sets one: sys.argv[1:3] are the number that is refused and with which errno.
FILTERED = """
import ctypes, os, struct, sys
number, errno = int(sys.argv[1]), int(sys.argv[2])
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[3], sys.argv[3:])
"""
BPF, PERF = {"x86_64": (321, 298), "aarch64": (280, 241)}[platform.machine()]
EPERM, ENOSYS = 1, 38


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with small_rank.running(tmp_path_factory.mktemp("rank"), port=PORT) as pid:
        yield pid


def _record(rank: int, out: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, RANKSCOPE, "record", "--window", "1", "--pid", str(rank), "--json", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line in which the command says why it ends."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("rankscope: ")]
    return line


def _doctor(*before: str) -> tuple[int, dict[str, str]]:
    """Its exit code, and what is missing with what is said of it."""
    done = subprocess.run(
        [*before, RANKSCOPE, "doctor", "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {one["name"]: one["detail"] for one in findings if one["ok"] is False and one["required"]}


def _without_tracefs() -> list[str]:
    """Neither mounted nor to be mounted: no CAP_SYS_ADMIN."""
    hidden = 'for one in tracing debug/tracing debug; do umount -l /sys/kernel/$one 2>/dev/null; done; exec "$@"'
    rights = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search,+checkpoint_restore,+setuid,+setgid,+setpcap"
    return ["unshare", "--mount", "sh", "-c", hidden, "sh", "setpriv", "--bounding-set", rights, "--inh-caps", "-all"]


def test_without_tracefs_it_says_how_to_mount_it(rank: int, tmp_path: Path) -> None:
    done = _record(rank, tmp_path / "out", *_without_tracefs())
    assert done.returncode == 69 and "mount -t tracefs none /sys/kernel/tracing" in _complaint(done)
    code, missing = _doctor(*_without_tracefs())
    assert code == 69 and "tracefs is not mounted" in missing["probes load"]


@pytest.mark.parametrize("errno", [EPERM, ENOSYS], ids=["EPERM", "ENOSYS"])
def test_where_a_container_refuses_bpf_it_says_so(rank: int, tmp_path: Path, errno: int) -> None:
    filtered = [sys.executable, "-c", FILTERED, str(BPF), str(errno)]
    done = _record(rank, tmp_path / "out", *filtered)
    assert done.returncode in (69, 77), done.stderr
    assert "bpf" in _complaint(done).lower() and not list((tmp_path / "out").iterdir())
    code, missing = _doctor(*filtered)
    assert code in (69, 77) and missing


@pytest.mark.parametrize("errno", [EPERM, ENOSYS], ids=["EPERM", "ENOSYS"])
def test_where_a_container_refuses_perf_events_it_says_so(rank: int, tmp_path: Path, errno: int) -> None:
    filtered = [sys.executable, "-c", FILTERED, str(PERF), str(errno)]
    done = _record(rank, tmp_path / "out", *filtered)
    assert done.returncode in (0, 69, 77), done.stderr
    said = _complaint(done) if done.returncode else str(json.loads(done.stdout)[0]["notes"])
    assert "perf" in said or "not attached" in said or "not sampled" in said


def test_on_a_read_only_root_it_records_where_it_can_write(rank: int, tmp_path: Path) -> None:
    sealed = 'mount -o remount,ro,bind / && mount -t tmpfs -o mode=0700 none "$0" && exec "$@"'
    out = tmp_path / "out"
    out.mkdir()
    command = ["unshare", "--mount", "sh", "-c", sealed, str(out)]
    done = _record(rank, out, *command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["ranks"] == 1
    done = _record(rank, tmp_path / "elsewhere", *command)
    assert done.returncode == 69 and "Read-only file system" in _complaint(done)


def test_without_kernel_types_it_records_and_doctor_says_what_is_lost(rank: int, tmp_path: Path) -> None:
    # Where they lay in an earlier run is kept in the cache.
    places = "/sys/kernel/btf /var/cache/rankscope"
    hiding = f'mkdir -p {places}; for one in {places}; do mount -t tmpfs -o mode=0700 none $one; done; exec "$@"'
    hidden = ["unshare", "--mount", "sh", "-c", hiding, "sh"]
    done = _record(rank, tmp_path / "out", *hidden)
    assert done.returncode == 0, done.stderr
    assert any("file calls are not timed" in note for note in json.loads(done.stdout)[0]["notes"])
