"""Xids in the kernel's log, as the driver's kernel module writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.gpu.xid import LoggedXid, logged_xids
from rankscope.probes.host.kmsg import KernelMessage


def message(text: str) -> KernelMessage:
    return KernelMessage(3, 7, 1009.5, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ("0000:3b:00", 79),
        ),
        ("NVRM: Xid (PCI:0000:C1:00.0): 94, pid=4711, Contained: SM (0x1)", ("0000:c1:00", 94)),
        ("NVRM: Xid (PCI:00000001:00:00): 13, Graphics SM Warp Exception", ("0001:00:00", 13)),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=7, name=python", ("0000:3b:00", 31)),
        ("usb 1-1: NVRM: Xid (PCI:0000:3b:00): 79", None),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!", None),
    ],
)
def test_number_and_place(text: str, expected: tuple[str, int] | None) -> None:
    found = logged_xids([message(text)])
    assert found == (() if expected is None else (LoggedXid(*expected, 1009.5),))


@given(st.text(max_size=120))
def test_any_text_is_read_without_complaint(text: str) -> None:
    logged_xids([message(text), message("NVRM: Xid (PCI:" + text)])
