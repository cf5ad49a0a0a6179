"""Numbers that the programs in the kernel and Python share by position: the C is read, and Python must say the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rankscope.probes.bpf import counters, ring
from rankscope.probes.calls import row
from rankscope.probes.files import probe as files
from rankscope.probes.sched import probe as sched
from rankscope.unwinder.interpreter import offsets
from rankscope.unwinder.walk import stack

ROOT = Path(__file__).parents[3]
SOURCES = sorted(
    path
    for package in ("probes", "unwinder")
    for path in (ROOT / package).rglob("*.bpf.*")
    if path.suffix in (".c", ".h")
)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_SIZES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "s32": "<i4", "u64": "<u8", "s64": "<i8"}
TEXT = _COMMENT.sub("", "\n".join(path.read_text() for path in SOURCES))


def enums() -> dict[str, dict[str, int]]:
    """Every enum of our C: its members and their values."""
    found: dict[str, dict[str, int]] = {}
    for name, body in re.findall(r"enum (\w+) \{(.*?)\};", TEXT, re.DOTALL):
        value, members = 0, dict[str, int]()
        for member in filter(None, (part.strip() for part in body.split(","))):
            word, _, given = (part.strip() for part in member.partition("="))
            value = int(given, 0) if given else value
            members[word] = value
            value += 1
        found[name] = members
    return found


def defined(name: str) -> int:
    (value,) = re.findall(rf"#define {name}[ \t]+(\w+)", TEXT)
    return int(value.removesuffix("ULL"), 0)


def fields(structure: str) -> list[tuple[str, str]]:
    """(name, numpy type) of the members of a structure of plain numbers."""
    (body,) = re.findall(rf"struct {structure} \{{(.*?)\}};", TEXT, re.DOTALL)
    lines = (line.strip().partition(" ") for line in body.split(";") if line.strip())
    return [(name.strip(), _SIZES[kind]) for kind, _, names in lines for name in names.split(",")]


PYTHON = {
    "rs_event_type": {
        "RS_EV_OFFCPU": ring.OFFCPU,
        "RS_EV_SAMPLE": ring.SAMPLE,
        "RS_EV_CALL": ring.CALL,
        "RS_EV_FILE": ring.FILE,
        "RS_EV_EXIT": ring.EXIT,
        "RS_EV_NATIVE": ring.NATIVE,
        "RS_EV_IDLE": ring.IDLE,
        "RS_EV_LAUNCH": ring.LAUNCH,
    },
    "rs_process_role": {"RS_ROLE_RANK": counters.RANK, "RS_ROLE_MEMBER": counters.MEMBER},
    "rs_counter": {
        **{f"RS_C_{name.upper()}": slot for slot, name in enumerate(counters.COUNTERS)},
        "RS_C_COUNT": len(counters.COUNTERS),
    },
    "rs_walk_status": {f"RS_WALK_{status.name}": status.value for status in stack.WalkStatus},
}


def test_every_enum_is_compared() -> None:
    assert set(enums()) == set(PYTHON)


@pytest.mark.parametrize("name", sorted(PYTHON))
def test_enums_have_the_same_members_at_the_same_places(name: str) -> None:
    assert enums()[name] == PYTHON[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RS_MAX_ROWS", row.MAX_ROWS),
        ("RS_MAX_PLACES", row.MAX_PLACES),
        ("RS_GIL", sched.GIL_WAIT),
        ("RS_THREADS_FREELY", sched._FREELY),
        ("RS_THREADS_EACH", sched._EACH),
        ("RS_TASK_STOPPED", sched.STOPPED),
        ("RS_TYPE_SOCKET", files.SOCKET),
        ("RS_MAX_FRAMES", stack.MAX_FRAMES),
        ("RS_SPAN", offsets.SPAN_CAP_BYTES),
        ("RS_ABSENT", offsets.ABSENT),
    ],
)
def test_constants_are_the_same(name: str, value: int) -> None:
    assert defined(name) == value


def test_an_event_has_the_same_fields_in_the_same_order() -> None:
    head = [("header", "<u4"), ("page", "<u4")]  # the kernel's own, before each record of the ring
    assert np.dtype(head + fields("rs_event")) == ring.EVENT
    assert ring.EVENT.itemsize == ring.STRIDE_BYTES


def test_a_walked_frame_has_the_same_fields_in_the_same_order() -> None:
    assert [name for name, _ in fields("rs_frame")] == list(stack.RawFrame._fields)
    assert np.dtype(fields("rs_frame")).itemsize == 16
