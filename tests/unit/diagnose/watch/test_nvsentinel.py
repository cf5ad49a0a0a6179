"""Health events to NVSentinel: by real gRPC to a server made of its interface, and to sockets that do not answer."""

from __future__ import annotations

import builtins
import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvsentinel_server import BAD_GPU, connector, mute, sweep_of, until

from rankscope.diagnose.nvsentinel import send as sending
from rankscope.diagnose.nvsentinel.delivered import deliver
from rankscope.diagnose.nvsentinel.from_service import Open
from rankscope.diagnose.nvsentinel.from_sweep import after, changes
from rankscope.diagnose.nvsentinel.health_event import check_name, entities_of
from rankscope.diagnose.nvsentinel.queue import WAITING_MOST, NvSentinel
from rankscope.diagnose.nvsentinel.send import NoNvsentinel
from rankscope.probes.base.errors import EXIT_MISSING, UsageError

needs_the_extra = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_tools")),
    reason="grpcio-tools is not installed",
)
HANG = {
    "schema": "rankscope.watch/1", "time": "2026-03-01T02:00:26.500Z", "host": "node7", "kind": "verdict", "state": "critical",
    "job": "train", "words": "HANG process/deadlock on rank 3", "alarm": "silent", "ranks": [3],
    "verdict": {"suspects": [{"component": "process", "cause": "deadlock", "host": "node7", "instance": None}]},
}  # fmt: skip
PORT = {
    "schema": "rankscope.watch/1", "time": "2026-03-01T02:00:26.500Z", "host": "node7", "kind": "hardware", "state": "critical",
    "job": None, "words": "mlx5_3/1 went down", "component": "nic", "cause": "down", "instance": "mlx5_3/1",
    "drain_reason": "rankscope: nic/down mlx5_3/1", "drain_host": "node7",
}  # fmt: skip


@needs_the_extra
def test_a_sweeps_finding_arrives_with_all_that_an_operator_filters_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu-node-42")
    warm = {
        **BAD_GPU,
        "id": "net.errors",
        "state": "warning",
        "instance": "eth0",
        "why": "errors grow",
        "value": None,
        "unit": "",
    }
    with connector(tmp_path) as (path, got):
        assert (
            deliver(sweep_of(BAD_GPU, warm), {"gpu.xid", "net.errors"}, tmp_path / "state", path, remediate=False) == ""
        )
        # Unchanged: nothing is sent again. Over: healthy, of the same check and entity.
        assert (
            deliver(sweep_of(BAD_GPU, warm), {"gpu.xid", "net.errors"}, tmp_path / "state", path, remediate=False) == ""
        )
        assert deliver(sweep_of(warm), {"gpu.xid", "net.errors"}, tmp_path / "state", path, remediate=True) == ""
    bad, warning, healthy = got
    assert (bad.nodeName, bad.agent, bad.componentClass, bad.checkName) == (
        "gpu-node-42",
        "rankscope",
        "GPU",
        "RankscopeGpuXid",
    )
    assert (bad.isFatal, bad.isHealthy, bad.recommendedAction, list(bad.errorCode)) == (True, False, 24, ["79"])
    assert [(one.entityType, one.entityValue) for one in bad.entitiesImpacted] == [("PCI", "0000:3b:00.0")]
    assert (bad.version, bad.processingStrategy, bad.generatedTimestamp.ToJsonString()) == (
        1,
        2,
        "2026-03-01T02:00:26Z",
    )
    assert "fallen off the bus" in bad.message and bad.metadata["value"] == "2.0 times Xid 79"
    assert (warning.isFatal, warning.recommendedAction, warning.componentClass) == (False, 0, "NIC")
    assert (healthy.checkName, healthy.isHealthy, healthy.isFatal, healthy.processingStrategy) == (
        "RankscopeGpuXid",
        True,
        False,
        1,
    )
    assert [one.entityValue for one in healthy.entitiesImpacted] == ["0000:3b:00.0"]


@needs_the_extra
def test_the_services_events_arrive_and_end_and_only_broken_hardware_is_fatal(tmp_path: Path) -> None:
    over = {**HANG, "kind": "over", "state": "ok", "words": "steps again", "verdict": None}
    with connector(tmp_path) as (path, got):
        sentinel = NvSentinel(path)
        notes = [sentinel.tell(HANG, "critical"), sentinel.tell(PORT, "critical"), sentinel.tell(over, "ok")]
        notes.append(sentinel.tell({**PORT, "state": "ok", "words": "up again", "drain_reason": None}, "ok"))
        until(lambda: len(got) == 4)
        until(lambda: not sentinel.tend() and not sentinel._sent)
        assert [*notes, sentinel.close()] == [""] * 5
    hang, port, moving, up = got
    assert (hang.checkName, hang.isFatal, hang.recommendedAction) == ("RankscopeProcessDeadlock", False, 0)
    assert (hang.metadata["job"], hang.metadata["ranks"]) == ("train", "3")
    assert (port.checkName, port.isFatal, port.recommendedAction) == ("RankscopeNicDown", True, 5)
    assert [(one.entityType, one.entityValue) for one in port.entitiesImpacted] == [("NIC", "mlx5_3"), ("NICPort", "1")]
    assert [(one.checkName, one.isHealthy, one.isFatal) for one in (moving, up)] == [
        ("RankscopeProcessDeadlock", True, False), ("RankscopeNicDown", True, False)]  # fmt: skip
    assert {one.processingStrategy for one in got} == {2}


@needs_the_extra
def test_a_socket_that_is_away_or_mute_costs_the_service_nothing_and_is_told_once(tmp_path: Path) -> None:
    with mute(tmp_path) as path:
        for socket, why in ((path, "no answer within 0.5 s|nobody answers"), (tmp_path / "none", "no such socket")):
            sentinel, notes, longest_s = NvSentinel(socket, timeout_s=0.5), [], 0.0
            for number in range(WAITING_MOST + 10):
                began = time.monotonic()
                notes.append(sentinel.tell({**HANG, "alarm": f"{number}"}, "critical"))
                longest_s = max(longest_s, time.monotonic() - began)
            until(lambda of=sentinel: of.tend() or of.lost > 10)
            notes.append(sentinel.tend())
            assert longest_s < 1.0
            last = sentinel.close()
            assert sum(map(bool, notes)) <= 1
            assert sentinel.lost == WAITING_MOST + 10
            assert f"{WAITING_MOST + 10} events" in last
            began = time.monotonic()
            assert pytest.importorskip("re").search(
                why, sending.send(socket, Open().events(HANG, "critical", "n"), timeout_s=0.5)
            )
            assert time.monotonic() - began < 5.0


@needs_the_extra
def test_what_a_sweep_could_not_deliver_the_next_one_does(tmp_path: Path) -> None:
    state = tmp_path / "state"
    note = deliver(sweep_of(BAD_GPU), {"gpu.xid"}, state, tmp_path / "nvsentinel.sock", remediate=False)
    assert "1 changes" in note
    assert "no such socket" in note
    with connector(tmp_path) as (path, got):
        assert deliver(sweep_of(BAD_GPU), {"gpu.xid"}, state, path, remediate=False) == ""
    assert [one.checkName for one in got] == ["RankscopeGpuXid"]


def test_what_a_sweep_cannot_see_is_not_over() -> None:
    known = {("gpu.xid", "a"): "critical"}
    unknown = {**BAD_GPU, "state": "unknown", "instance": ""}
    assert changes(sweep_of(unknown), known, {"gpu.xid"}, "n") == ()  # it could not look
    assert changes(sweep_of(absent=("gpu.xid",)), known, {"gpu.xid"}, "n") == ()  # the driver is unloaded
    assert changes(sweep_of(), known, {"disk.full"}, "n") == ()  # it did not run
    (healthy,) = changes(sweep_of(), known, {"gpu.xid"}, "n")
    assert healthy.healthy
    assert after(known, [healthy]) == {}


def test_another_hosts_hardware_is_not_this_nodes_fault() -> None:
    (event,) = Open().events({**PORT, "drain_host": "node8"}, "critical", "n")
    assert (event.fatal, event.action) == (False, "NONE")


@given(st.text(max_size=50), st.text(max_size=50))
def test_names_of_checks_and_entities_are_plain_whatever_they_are_made_of(component: str, instance: str) -> None:
    assert check_name(component).isascii()
    assert check_name(component).isalnum()
    assert (
        all(kind and value and "\n" not in value for kind, value in entities_of(component, instance))
        or not instance.strip()
    )


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "grpc" else find(name, *more))
    with pytest.raises(NoNvsentinel) as raised:
        sending.check_asked(Path("/run/x.sock"), remediate=False)
    assert raised.value.exit_code == EXIT_MISSING
    assert "rankscope[nvsentinel]" in raised.value.help
    with pytest.raises(UsageError, match="--nvsentinel SOCKET"):
        sending.check_asked(None, remediate=True)


def test_a_library_that_cannot_be_loaded_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = builtins.__import__

    def broken(name: str, *more: Any, **named: Any) -> Any:
        if name == "grpc":
            raise ImportError("wrong glibc")
        return load(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert "wrong glibc" in sending.send(tmp_path / "s", Open().events(HANG, "critical", "n"))
