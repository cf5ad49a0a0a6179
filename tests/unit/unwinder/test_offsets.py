"""The tables and the parser of the layout that 3.13 and later publish."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import debug_offsets, layout

from rankscope.unwinder.interpreter.offsets import (
    DEBUG_COOKIE,
    DEBUG_OFFSETS_BYTES,
    RECORD_BYTES,
    TABLES,
    DebugOffsets,
    parse_debug_offsets,
)


def test_3_13_is_read_from_what_it_publishes() -> None:
    found = parse_debug_offsets(debug_offsets(13))
    assert found is not None
    assert found.version_hex == 0x030D00F0
    offsets = found.offsets
    assert offsets is not None
    assert (offsets.interpreter_next, offsets.interpreter_threads_head) == (7264, 7344)
    assert (offsets.frame_code, offsets.frame_owner, offsets.tag_bits) == (0, 70, 0)
    assert (offsets.code_flags, offsets.code_argcount, offsets.code_kwonlyargcount) == (48, 52, 60)
    assert (offsets.ascii_text, offsets.compact_text, offsets.code_bytecode) == (40, 56, 200)


def test_3_14_tags_its_code_pointers() -> None:
    offsets = layout(14)
    assert (offsets.frame_owner, offsets.tag_bits, offsets.code_bytecode) == (74, 3, 208)


def test_3_15_has_more_between_frame_and_thread_id() -> None:
    offsets = layout(15)
    assert (offsets.tstate_frame, offsets.tstate_thread_id, offsets.tstate_native_thread_id) == (72, 176, 184)
    assert (offsets.interpreter_next, offsets.interpreter_threads_head) == (7264, 7336)


def test_versions_before_3_13_publish_nothing() -> None:
    assert parse_debug_offsets(bytes(DEBUG_OFFSETS_BYTES)) is None


def test_a_free_threaded_build_is_recognised() -> None:
    assert parse_debug_offsets(debug_offsets(13, free_threaded=1)) == DebugOffsets(0x030D00F0, True, None)


@pytest.mark.parametrize("minor", [12, 16, 99])
def test_other_versions_are_refused(minor: int) -> None:
    data = DEBUG_COOKIE + struct.pack("<QQ", 0x0300_00F0 | minor << 16, 0)
    with pytest.raises(ValueError, match="not known"):
        parse_debug_offsets(data.ljust(DEBUG_OFFSETS_BYTES, b"\0"))


@pytest.mark.parametrize("position", range(24, 128, 8))
def test_offsets_that_cannot_be_true_are_refused_or_harmless(position: int) -> None:
    data = bytearray(debug_offsets(13))
    data[position : position + 8] = b"\xff" * 8
    try:
        found = parse_debug_offsets(bytes(data))
    except ValueError:
        return
    # what was damaged is a field that is not used
    assert found == parse_debug_offsets(debug_offsets(13))


@given(minor=st.sampled_from([13, 14, 15]), noise=st.binary(max_size=900), kept=st.integers(0, 760))
def test_noise_is_refused_or_makes_a_record(minor: int, noise: bytes, kept: int) -> None:
    data = debug_offsets(minor)[:kept] + noise
    try:
        found = parse_debug_offsets(data)
    except ValueError:
        return
    if found is not None and found.offsets is not None:
        assert len(found.offsets.pack()) == RECORD_BYTES


@given(st.binary(max_size=24 + 800))
def test_noise_behind_a_true_head_is_refused_or_makes_a_record(noise: bytes) -> None:
    test_noise_is_refused_or_makes_a_record.hypothesis.inner_test(13, noise, 24)  # type: ignore[attr-defined]


@pytest.mark.parametrize("minor", TABLES)
def test_each_table_is_of_its_version(minor: int) -> None:
    assert TABLES[minor].minor == minor
    assert len(TABLES[minor].pack(1)) == RECORD_BYTES
