"""The walk of walk.bpf.h, compiled for the host, over images of every layout."""

from __future__ import annotations

import pytest
from hostwalk import CYCLE, MAX_FRAMES, NO_FRAME, OK, READ_FAILED, STALE, HostWalk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from images import NONE, THREAD_ID, Interpreter, layout

from rankscope.unwinder.interpreter.offsets import RECORD_BYTES
from rankscope.unwinder.names.code import checksum

MINORS = [8, 9, 10, 11, 12, 13, 14, 15]
every_layout = pytest.mark.parametrize("minor", MINORS)
with_shims = pytest.mark.parametrize("minor", [12, 13, 14, 15])


def record(made: Interpreter) -> bytes:
    return made.offsets.pack(NONE)


def test_the_record_has_the_size_that_the_c_side_expects(host_walk: HostWalk) -> None:
    assert host_walk.offsets_size == RECORD_BYTES == len(layout(11).pack())


@every_layout
def test_frames_come_innermost_first_with_place_and_checksum(host_walk: HostWalk, minor: int) -> None:
    # GIVEN a thread 23 functions deep, the outermost at code unit 0, the innermost at 22
    made = Interpreter(layout(minor))
    tstate, codes = made.stack(23)
    # WHEN
    walked = host_walk.walk(record(made), made.image, tstate, THREAD_ID)
    # THEN
    assert (walked.status, walked.truncated) == (OK, False)
    assert walked.frames == tuple((code, 22 - index, checksum(2, 1, 3, 23 - index)) for index, code in enumerate(codes))
    # two reads a frame, one of the thread state, at most one more to reach the top frame
    assert walked.reads <= 2 * 23 + 2


@every_layout
def test_a_frame_that_has_not_begun_has_no_place(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    tstate = made.tstate(made.frame(made.code(), -1))
    assert host_walk.walk(record(made), made.image, tstate, THREAD_ID).frames[0][1] == -1


@every_layout
def test_200_frames_give_the_innermost_128_and_a_mark(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    tstate, codes = made.stack(200)
    walked = host_walk.walk(record(made), made.image, tstate, THREAD_ID)
    assert (walked.status, walked.truncated) == (OK, True)
    assert [frame[0] for frame in walked.frames] == codes[:MAX_FRAMES]


@every_layout
def test_128_frames_are_complete(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    tstate, codes = made.stack(MAX_FRAMES)
    walked = host_walk.walk(record(made), made.image, tstate, THREAD_ID)
    assert (walked.status, walked.truncated, len(walked.frames)) == (OK, False, len(codes))


@every_layout
def test_a_thread_state_of_another_thread_is_not_followed(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    tstate, _ = made.stack(3)
    walked = host_walk.walk(record(made), made.image, tstate, THREAD_ID + 64)
    assert (walked.status, walked.frames, walked.reads) == (STALE, (), 1)


@every_layout
def test_a_thread_outside_python_has_no_frame(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    walked = host_walk.walk(record(made), made.image, made.tstate(0), THREAD_ID)
    assert (walked.status, walked.frames) == (NO_FRAME, ())


@every_layout
def test_a_thread_state_that_is_gone_is_reported(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    assert host_walk.walk(record(made), made.image, 0xDEAD_0000, THREAD_ID).status == READ_FAILED
    assert host_walk.walk(record(made), made.image, 0, THREAD_ID).status == READ_FAILED


@every_layout
@pytest.mark.parametrize("length", [1, 2, 3, 7, 50])
def test_a_ring_of_frames_is_noticed(host_walk: HostWalk, minor: int, length: int) -> None:
    # GIVEN frames that lead back to the first, behind a tail of five
    made = Interpreter(layout(minor))
    frames = [made.frame(made.code(), 1) for _ in range(length)]
    for index, frame in enumerate(frames):
        made.image.u64(frame + made.offsets.frame_previous, frames[(index + 1) % length])
    top = frames[0]
    for _ in range(5):
        top = made.frame(made.code(), 1, top)
    # WHEN / THEN
    walked = host_walk.walk(record(made), made.image, made.tstate(top), THREAD_ID)
    assert (walked.status, walked.truncated) == (CYCLE, True)


@every_layout
def test_frames_before_a_pointer_into_nowhere_are_kept(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    code = made.code()
    tstate = made.tstate(made.frame(code, 5, previous=0xDEAD_BEEF_0000))
    walked = host_walk.walk(record(made), made.image, tstate, THREAD_ID)
    assert (walked.status, walked.truncated) == (READ_FAILED, True)
    assert [frame[:2] for frame in walked.frames] == [(code, 5)]


@every_layout
def test_code_that_is_paged_out_has_checksum_0(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    here = made.code()
    outer = made.frame(here, 2)
    tstate = made.tstate(made.frame(0x7FFF_0000_0000, 3, outer))
    walked = host_walk.walk(record(made), made.image, tstate, THREAD_ID)
    assert walked.status == OK
    assert walked.frames == ((0x7FFF_0000_0000, 3, 0), (here, 2, checksum(2, 1, 3, 1)))


@with_shims
def test_shim_frames_are_left_out(host_walk: HostWalk, minor: int) -> None:
    # GIVEN shim, f, shim, g, shim from leaf to root
    made = Interpreter(layout(minor))
    outer, inner = made.code("g"), made.code("f")
    frame = made.shim(made.frame(inner, 1, made.shim(made.frame(outer, 2, made.shim()))))
    # WHEN
    walked = host_walk.walk(record(made), made.image, made.tstate(frame), THREAD_ID)
    # THEN
    assert (walked.status, walked.truncated) == (OK, False)
    assert [code for code, _, _ in walked.frames] == [inner, outer]


@with_shims
def test_nothing_but_a_shim_is_no_frame(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    assert host_walk.walk(record(made), made.image, made.tstate(made.shim()), THREAD_ID).status == NO_FRAME


@with_shims
def test_an_endless_chain_of_shims_ends(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    frame = 0
    for _ in range(300):
        frame = made.shim(frame)
    walked = host_walk.walk(record(made), made.image, made.tstate(frame), THREAD_ID)
    assert (walked.status, walked.truncated) == (CYCLE, True)


@pytest.mark.parametrize("tag", [0, 1, 2, 3])
def test_tag_bits_of_3_14_are_no_part_of_the_address(host_walk: HostWalk, tag: int) -> None:
    made = Interpreter(layout(14))
    code = made.code()
    nothing = made.frame(NONE, 0, made.frame(code, 4, tag=tag), owner=0, tag=tag)
    walked = host_walk.walk(record(made), made.image, made.tstate(nothing), THREAD_ID)
    assert [frame[:2] for frame in walked.frames] == [(code, 4)]


def test_the_sentinel_of_3_14_without_code_is_left_out(host_walk: HostWalk) -> None:
    made = Interpreter(layout(14))
    code = made.code()
    tstate = made.tstate(made.frame(code, 4, made.frame(0, 0, owner=4, tag=0)))
    assert [f[0] for f in host_walk.walk(record(made), made.image, tstate, THREAD_ID).frames] == [code]


@every_layout
def test_leaf_tells_where_a_thread_is(host_walk: HostWalk, minor: int) -> None:
    made = Interpreter(layout(minor))
    outer = made.frame(made.code("g"), 2)
    code = made.code("f")
    frame = made.frame(code, 7, outer)
    tstate = made.tstate(frame)
    leaf = host_walk.leaf(record(made), made.image, tstate, THREAD_ID)
    assert (leaf.status, leaf.frame, leaf.code, leaf.previous) == (OK, frame, code, outer)
    # WHEN the thread moves on by one instruction
    moved = made.tstate(made.frame(code, 8, outer))
    assert host_walk.leaf(record(made), made.image, moved, THREAD_ID).last != leaf.last
    assert host_walk.leaf(record(made), made.image, tstate, THREAD_ID + 1).status == STALE


@given(forged=st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES), tail=st.binary(max_size=300))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_forged_offsets_stay_inside_the_scratch(host_walk: HostWalk, forged: bytes, tail: bytes) -> None:
    made = Interpreter(layout(12))
    tstate, _ = made.stack(3)
    made.image.write(tstate, tail)
    walked = host_walk.walk(forged, made.image, tstate, THREAD_ID)
    assert len(walked.frames) <= MAX_FRAMES


@given(noise=st.binary(min_size=64, max_size=512), minor=st.sampled_from(MINORS))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_memory_ends_the_walk(host_walk: HostWalk, noise: bytes, minor: int) -> None:
    class Noise:
        def read(self, address: int, size: int) -> bytes:
            start = address % len(noise)
            return (noise[start:] + noise * (size // len(noise) + 1))[:size]

    expected = int.from_bytes(Noise().read(0x1000 + layout(minor).tstate_thread_id, 8), "little")
    walked = host_walk.walk(layout(minor).pack(NONE), Noise(), 0x1000, expected)
    assert len(walked.frames) <= MAX_FRAMES
