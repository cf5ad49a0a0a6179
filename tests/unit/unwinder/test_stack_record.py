"""A stack from the kernel's map is decoded as far as it goes; test_walk.py compares whole ones with the C compiler's layout."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rankscope.unwinder.walk.stack import MAX_FRAMES, RawFrame, WalkStatus, decode


def test_frames_beyond_the_count_are_left_from_earlier_walks() -> None:
    record = struct.pack("<IIII", 1, 1, 3, 0) + struct.pack("<QiI", 17, -1, 19) + struct.pack("<QiI", 23, 29, 31)
    found = decode(record)
    assert found.frames == (RawFrame(17, -1, 19),)
    assert (found.truncated, found.status) == (True, WalkStatus.READ_FAILED)


@given(st.binary(max_size=16 + 16 * (MAX_FRAMES + 2)))
def test_any_bytes_are_decoded(record: bytes) -> None:
    assert len(decode(record).frames) <= min(MAX_FRAMES, max(len(record) - 16, 0) // 16)
