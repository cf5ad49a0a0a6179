"""The border between the confined process and root: what root reads from the process that has parsed the bytes of others.

Whoever took hold of that process says what he likes. So an input fails not only by an error that nobody expects, but also where something
was done with rights for arguments that are none, or where a descriptor stays open.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from functools import cache
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from campaignkit.fuzz.target import Target, swapped
from rankscope.observer.apart import broker as brokers
from rankscope.observer.apart import devices, look, plain, run, wire
from rankscope.observer.apart.broker import Broker
from rankscope.observer.apart.windows import parse_window
from rankscope.observer.live import kernel_probes
from rankscope.observer.sight import Sight
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf.functions import shared_uprobes
from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.host import kmsg, namespaces
from rankscope.probes.mapped import reader
from rankscope.probes.nccl import ras
from rankscope.probes.network import netlink
from rankscope.unwinder.walk import pyspy

MOST_MESSAGES = 32  # of one input; their answers have room in the socket then
SERVED = os.getpid  # the confined process is this one


class Said(RankscopeError):
    """An error that the confined process said of itself: raised as such by the command."""


class Misused(AssertionError):
    """Something was done with rights that nobody may have done."""


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise Misused(what)


def _number(value: object, least: int, end: int) -> bool:
    return type(value) is int and least <= value < end


def _load(*, ranks: int, processes: int, threads: int, hz: int, root: object, verbose: bool) -> SimpleNamespace:
    for one in (ranks, processes, threads):
        _need(_number(one, 0, 1 << 24), "room for absurdly many")
    _need(_number(hz, 0, 1001) and type(verbose) is bool, "a rate that is none")
    return SimpleNamespace(module=_LOADED, ring_bytes=4096, notes=(), refused=())


def _attach(attach: Any, file: Any, places: Sequence[int], root: object) -> tuple[int, ...]:
    """In place of shared_uprobes.attach: looks at what would be attached, and where."""
    function, path, own = attach.args
    on_return, place = attach.keywords["on_return"], attach.keywords["place"]
    _need(function.startswith(("rs_enter_", "rs_leave_", "rs_call_site")), f"the program {function}")
    _need(
        path == file.path and own == places and all(_number(one, 0, 1 << 62) for one in places), "places that are none"
    )
    _need(type(on_return) is bool and (place is None or _number(place, 0, 1 << 16)), "a place that is none")
    return (7,)


def _release(links: Sequence[int]) -> None:
    _need(all(_number(one, 0, 1 << 31) for one in links), "links that are none")


def _sample(pid: int, seconds: float, rate: int, idle: bool) -> SimpleNamespace:
    _need(_number(pid, 1, 1 << 31) and 0 <= seconds <= 3600 and _number(rate, 0, 1001) and type(idle) is bool, "py-spy")
    return SimpleNamespace(end=lambda: (0, ()), ended=lambda: True)


def _netlink(protocol: int, where: int | None, root: object) -> socket.socket:
    _need(protocol in (netlink.NETLINK_ROUTE, netlink.NETLINK_SOCK_DIAG), "a protocol that is none")
    _need(where is None or _number(where, 1, 1 << 31), "a process that is none")
    return socket.socket()


def _of_process(answer: object) -> Callable[..., object]:
    def ask(pid: int, **_: object) -> object:
        _need(_number(pid, 1, 1 << 31), "a process that is none")
        return answer

    return ask


def _priority(which: int, tid: int, nice: int) -> None:
    _need(which == os.PRIO_PROCESS and os.path.exists(f"/proc/{SERVED()}/task/{tid}"), "another's thread")  # noqa: PTH110
    _need(_number(nice, -10, 20), "a priority that is none")


def _policy(tid: int, policy: int, _: os.sched_param) -> None:
    _need(os.path.exists(f"/proc/{SERVED()}/task/{tid}"), "another's thread")  # noqa: PTH110
    _need(policy in (os.SCHED_OTHER, os.SCHED_IDLE), "a policy that goes before others")


def _child() -> tuple[int, socket.socket, int]:
    return 7, socket.socket(), os.open(os.devnull, os.O_RDONLY)


def _end_child(pid: int, *, kill: bool) -> None:
    _need(pid == 7 and type(kill) is bool, "an end of what was not started")


def _opener(listener: int) -> int:
    os.fstat(listener)
    return 7


def _said(told: dict[str, Any]) -> Said:
    return Said(f"{type(_RAISED(told)).__name__}")


_RAISED = wire.raised
_LOADED = SimpleNamespace(
    attach_functions=lambda *_, **__: (7,), release=_release, rest=lambda: None, wake=tuple, costs=tuple, close=lambda: None,
    held=set(), withdrawn=Withdrawn, may_rest=False, maps={}, remarks=[],
)  # fmt: skip


@contextmanager
def nothing_done() -> Iterator[None]:
    """Whatever would be done with rights is looked at, and not done."""
    swaps: tuple[tuple[Any, str, object], ...] = (
        (kernel_probes, "load_module", _load), (shared_uprobes, "attach", _attach), (pyspy, "start", _sample),
        (netlink, "open_netlink", _netlink), (ras, "fetch", _of_process(b"{}")), (brokers, "give_back", lambda **_: None),
        (kmsg, "open_log", lambda _: os.open(os.devnull, os.O_RDONLY)), (os, "setpriority", _priority),
        (os, "sched_setscheduler", _policy),
        (reader, "start_child", _child), (reader, "end_child", _end_child),
        (namespaces, "uts_name", _of_process("x")), (devices, "start", _opener), (wire, "raised", _said),
    )  # fmt: skip
    with ExitStack() as held:
        for where, name, value in swaps:
            held.enter_context(swapped(where, name, value))
        yield


def messages_of(data: bytes) -> list[tuple[bytes, int]]:
    """Messages and how many descriptors come with each: lines, the first byte of each modulo four says how many."""
    return [(line[1:], line[0] % 4) for line in data.split(b"\n")[:MOST_MESSAGES] if len(line) > 1]


def requests(data: bytes) -> None:
    """Serve a confined process that says this. Files that it hands over hold the whole input."""
    before = _open_descriptors()
    try:
        with nothing_done():
            _serve(messages_of(data), data)
    finally:
        _need(_open_descriptors() == before, "a descriptor stays open")


def _serve(messages: Sequence[tuple[bytes, int]], content: bytes) -> None:
    ours, theirs = wire.pair()
    handed: list[int] = []
    services = Broker(served=SERVED(), orders=lambda _: {})
    try:
        for text, count in messages:
            files = [wire.file_in_memory("told", lambda file: file.write(content)) for _ in range(count)]
            handed += files
            socket.send_fds(theirs, [text], files)
        theirs.shutdown(socket.SHUT_WR)
        run._serve(
            ours,
            services,
            _heard,
            lambda text: _need(text.isprintable(), "what is said steers a terminal"),
            float("inf"),
        )
    except Said:
        pass
    finally:
        services.close()
        for file in handed:
            os.close(file)
        for end in (ours, theirs):
            end.close()


def _heard(told: dict[str, Any], handed: Sequence[int]) -> bool:
    if told.get("what") == "window":
        parse_window(told, handed)
    elif told.get("what") == "seen":
        plain.unpack(Sight, look._content(handed))
    else:
        return False
    return True


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _example(kind: Any, many: int) -> Any:
    """A value of a type, with so many elements in each tuple and mapping."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _example(inner[0], many) if many else None
    if is_dataclass(kind):
        make: Any = kind
        return make(*(_example(part, many) for part in get_type_hints(kind).values()))
    if origin is tuple and inner[1:] == (...,):
        return tuple(_example(inner[0], many) for _ in range(many))
    if origin is tuple:
        return tuple(_example(part, many) for part in inner)
    if origin is dict:
        return {_example(inner[0], many): _example(inner[1], many) for _ in range(many)}
    return {str: "x", int: 7, float: 1.5, bool: True}[kind]


@cache
def _seeds() -> tuple[bytes, ...]:
    arguments: dict[str, dict[str, Any]] = {
        "load": {"hz": 99, "ranks": 8, "processes": 64, "threads": 256, "verbose": False}, "unload": {},
        "attach": {"function": "rs_enter_0", "offsets": [16, 4096], "on_return": False, "place": 3}, "release": {"links": [7]},
        "withdrawn": {}, "rest": {}, "wake": {}, "order": {}, "costs": {}, "socket": {"pid": 7, "protocol": 4}, "ras": {"pid": 7},
        "priority": {"tid": os.getpid(), "nice": -5, "yields_s": 1.0}, "kernel_log": {}, "reader": {},
        "end_reader": {"pid": 7, "kill": True},
        "uts_name": {"pid": 7}, "open_devices": {}, "pyspy_start": {"pid": 7, "duration_s": 1.5, "rate_hz": 19, "idle": False},
        "pyspy_ended": {"pid": 7}, "pyspy_end": {"pid": 7}, "say": {"text": "observing\x1b[2J"}, "seen": {},
        "window": {"files": ["manifest.json"]}, "failed": {"error": "BadData", "number": None, "text": "x"}, "done": {},
    }  # fmt: skip
    if unknown := set(Broker.SERVICES) - set(arguments):
        raise LookupError(f"no seed for {unknown}")
    handed = {"attach": b"1", "open_devices": b"1", "seen": b"1", "window": b"1"}
    lines = [handed.get(what, b"0") + json.dumps({"what": what, **more}).encode() for what, more in arguments.items()]
    ending = (b"done", b"failed", b"seen", b"window")
    going_on = [line for line in lines if not any(b'"%s"' % word in line for word in ending)]
    return (*lines, b"\n".join(going_on))


TARGETS = (
    Target(
        "requests",
        "what the confined process asks root for and tells it",
        requests,
        lambda: list(_seeds()),
        words=(
            b'"what": "',
            b"\n0",
            b"\n1",
            b"[[",
            b"1e999",
            b"9" * 400,
            b"-1",
            b"null",
            b"true",
            b'{"what": ["a"]}',
            b'"pid": ',
        ),
        longest_bytes=8192,
    ),
    Target(
        "seen",
        "what a look of the confined process tells",
        lambda data: plain.unpack(Sight, data),
        lambda: [plain.pack(_example(Sight, many)) for many in (0, 1, 2)],
        words=(b"[", b"[[", b"null", b"true", b"1e999", b"9" * 400, b'"\\ud800"', b","),
        longest_bytes=65536,
    ),
)
