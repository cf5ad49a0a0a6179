"""What a sweep starts, it ends: threads, the child that asks mounts, a hook; and what is printed of a finding."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import NOW_S, SWEPT, host, program

from rankscope.diagnose.sweep import engine, hook
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Context, Earlier
from rankscope.diagnose.sweep.engine import MAX_FINDINGS_PER_CHECK, Sweep, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.hook import run_hook
from rankscope.diagnose.sweep.output import as_json, as_prometheus, as_text
from rankscope.diagnose.sweep.readings import filesystems, fuse_servers
from rankscope.diagnose.sweep.registry import Check
from rankscope.probes.host.mounts import Mount

DOWN = Finding("net.link", "critical", "eth0", "/sys", 1.0, "", "link up", "it is down", "plug it in")
_GET_CHILD_SUBREAPER = 37


def check(function: object) -> Check:
    return Check("a.b", "", "", {}, function)  # type: ignore[arg-type]


def unclosed(said: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in said if issubclass(one.category, ResourceWarning)]


# --- checks


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), RuntimeError("another")])
def test_a_check_without_a_thread_is_unknown_and_any_other_error_is_none_of_its(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", refused)
    if str(error) == "another":
        with pytest.raises(RuntimeError, match="another"):
            sweep([check(lambda _: iter(()))], Config(), Earlier(), host(tmp_path), NOW_S)
        return
    (found,) = sweep([check(lambda _: iter(()))], Config(), Earlier(), host(tmp_path), NOW_S).findings
    assert found.state == "unknown" and "no thread could be started" in found.why


def test_findings_without_end_are_neither_kept_nor_sorted_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    worst = engine._worst

    def counted(findings: list[Finding]) -> list[Finding]:
        sizes.append(len(findings))
        return worst(findings)

    def flood(context: Context) -> Iterator[Finding]:
        for number in range(20 * MAX_FINDINGS_PER_CHECK):
            yield context.ok(str(number), 1.0)

    monkeypatch.setattr(engine, "_worst", counted)
    sweep([check(flood)], Config(), Earlier(), host(tmp_path), NOW_S)
    assert max(sizes) <= 2 * MAX_FINDINGS_PER_CHECK and len(sizes) <= 22


# --- mounts


def test_a_child_that_asks_a_silent_mount_is_ended_and_buried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_SCRIPT", "import time; print('begun', flush=True); time.sleep(60)")
    mount = Mount(21, 1, 0, 40, "/", "/data", "rw", "nfs4", "filer:/x", "rw")
    before = hook._children()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (usage,) = filesystems._ask_child([("", "/", "data")], (mount,), 0.2)
        gc.collect()
    assert not usage.answered and hook._children() == before and unclosed(said) == []


def test_who_serves_a_mount_is_not_searched_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a process of the host's own root that holds the mount, as a hand-made tree has it
    for pid in (1, 7):
        (tmp_path / f"proc/{pid}/fd").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/fdinfo").mkdir()
        (tmp_path / f"proc/{pid}/ns").mkdir()
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\tserver\nTgid:\t{pid}\nUid:\t0\t0\t0\t0\n")
        for name, inode in (("user", 0xEFFFFFFD), ("pid", 0xEFFFFFFC), ("mnt", 5)):
            (tmp_path / f"proc/{pid}/ns/{name}").symlink_to(f"{name}:[{inode}]")
    (tmp_path / "proc/7/fd/3").symlink_to("/dev/fuse")
    (tmp_path / "proc/7/fdinfo/3").write_text("pos:\t0\nfuse_connection:\t40\n")
    mount = Mount(21, 1, 0, 40, "/", "/data", "rw", "fuse", "x", "rw")
    assert fuse_servers.of_the_host(mount, tmp_path)
    monkeypatch.setattr(fuse_servers, "LONGEST_S", -1.0)
    assert not fuse_servers.of_the_host(mount, tmp_path)


# --- hooks


@pytest.mark.parametrize(
    ("text", "said"),
    [("echo no  quota >&2; exit 3", "exit code 3: no quota"), ("exit 3", "exit code 3"), ("echo all well >&2", "")],
)
def test_a_hooks_last_words_are_told_with_its_failure(tmp_path: Path, text: str, said: str) -> None:
    ran = run_hook(str(program(tmp_path / "hook", text)), SWEPT, 10)
    assert ran == (f"hook {tmp_path}/hook: {said}" if said else "")


def test_nothing_of_a_hook_stays_open(tmp_path: Path) -> None:
    deaf = "trap '' TERM; while :; do sleep 1; done"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert "did not end" in run_hook(str(program(tmp_path / "hook", deaf)), SWEPT, 0.3)
        gc.collect()
    assert unclosed(said) == []
    parent = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(parent), 0, 0, 0) == 0 and parent.value == 0


def test_a_hook_that_says_nothing_more_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    poll = subprocess.Popen.poll

    def counted(child: subprocess.Popen[bytes]) -> int | None:
        asked.append(child.pid)
        return poll(child)

    monkeypatch.setattr(subprocess.Popen, "poll", counted)
    assert run_hook(str(program(tmp_path / "hook", "exec 2>&-; sleep 1")), SWEPT, 10) == ""
    assert 2 <= len(asked) <= 30


# --- what is printed


def swept(root: Path, *findings: Finding) -> Sweep:
    done = sweep([], Config(), Earlier(), host(root), NOW_S)
    return replace(done, findings=findings, skipped=(("gpu.ecc", "no GPU"),), seconds=1.5, cpu_seconds=0.25)


def test_what_lasts_is_told_with_its_beginning_and_what_was_expected(tmp_path: Path) -> None:
    fresh, old = replace(DOWN, since_s=NOW_S - 59), replace(DOWN, since_s=NOW_S - 61)
    text = {since: "\n".join(as_text(swept(tmp_path, one))) for since, one in ((0, DOWN), (59, fresh), (61, old))}
    assert [" (since 20" in one for one in text.values()] == [False, False, True]
    assert all("          expected link up\n          it is down" in one for one in text.values())
    assert [one["since"] for one in as_json(swept(tmp_path, DOWN, old))["findings"]] == [None, "2027-01-15T07:58:59Z"]


def test_checks_that_are_well_and_those_without_an_object_have_a_line_each(tmp_path: Path) -> None:
    fine = replace(DOWN, id="disk.errors", state="ok")
    lines = list(as_text(swept(tmp_path, fine, DOWN, replace(DOWN, state="ok"))))
    assert "ok        disk.errors" in lines and [line for line in lines if line.endswith(" gpu.ecc")]
    assert len(list(as_text(replace(swept(tmp_path), skipped=())))) == 1


def test_a_sweep_tells_its_own_time_to_prometheus(tmp_path: Path) -> None:
    text = as_prometheus(swept(tmp_path))
    assert "\nrankscope_sweep_duration_seconds 1.500\n" in text and "\nrankscope_sweep_cpu_seconds 0.250\n" in text
    assert f"\nrankscope_sweep_last_run_timestamp_seconds {NOW_S:.3f}\n" in text
