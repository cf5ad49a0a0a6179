"""A platform connector of NVSentinel: real gRPC on a unix socket, its messages made of the interface's file."""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

INTERFACE = Path(__file__).parents[1] / "data" / "nvsentinel"
BAD_GPU = {
    "id": "gpu.xid", "state": "critical", "instance": "0000:3b:00.0", "read": "/dev/kmsg", "value": 2.0, "unit": "times Xid 79",
    "expected": "none", "why": "Xid 79: GPU has fallen off the bus", "since": None, "action": "Drain the host and power-cycle it.",
}  # fmt: skip


def sweep_of(*findings: dict[str, Any], absent: tuple[str, ...] = ()) -> dict[str, Any]:
    """JSON of a sweep with these findings."""
    skipped = [{"id": one, "why": "no such thing"} for one in absent]
    return {"schema": "rankscope.sweep/1", "host": "node7", "time": "2026-03-01T02:00:26Z", "findings": list(findings),
            "summary": {"state": "critical", "not_applicable": skipped}, "notes": []}  # fmt: skip


def interface(folder: Path) -> Any:
    """Messages and services that protoc makes of the interface's file."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder.mkdir(exist_ok=True)
    includes = Path(protoc.__file__).parent / "_proto"
    done = protoc.main(["", f"-I{INTERFACE}", f"-I{includes}", f"--python_out={folder}", "health_event.proto"])
    assert done == 0
    sys.path.insert(0, str(folder))
    try:
        return sys.modules.get("health_event_pb2") or importlib.import_module("health_event_pb2")
    finally:
        sys.path.remove(str(folder))


@contextmanager
def connector(folder: Path, answer: Callable[[], None] = lambda: None) -> Iterator[tuple[Path, list[Any]]]:
    """Its socket, and the events that it got. `answer`: runs before each answer."""
    import grpc

    messages, got = interface(folder / "made"), []

    def occurred(request: Any, _: Any) -> Any:
        got.extend(request.events)
        answer()
        return importlib.import_module("google.protobuf.empty_pb2").Empty()

    handler = grpc.unary_unary_rpc_method_handler(
        occurred,
        request_deserializer=messages.HealthEvents.FromString,
        response_serializer=lambda one: one.SerializeToString(),
    )
    service = messages.DESCRIPTOR.services_by_name["PlatformConnector"]
    (method,) = service.methods
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, {method.name: handler}),))
    path = folder / "nvsentinel.sock"
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield path, got
    finally:
        server.stop(None).wait()


@contextmanager
def mute(folder: Path) -> Iterator[Path]:
    """A socket that takes connections and never answers."""
    path = folder / "mute.sock"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(8)
        yield path


def until(found: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for it, and fail where it does not come."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)
