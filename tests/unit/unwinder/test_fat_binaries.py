"""Fat binaries: every kernel of every container, from few bytes, and from damaged ones nothing worse than nothing."""

from __future__ import annotations

import pytest
from fat_binaries import container, cubin, fat_binary, image, packed, ptx
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.unwinder.gpu.fatbin import CUBIN, LZ4, PTX, STORED, ZSTD, Image, containers
from rankscope.unwinder.gpu.images import kernels_of_cubin, kernels_of_ptx
from rankscope.unwinder.gpu.unpack import NotUnpacked, unpack, unpack_lz4

KERNELS = ("_Z3addPfS_", "_ZN2at6native4gemmIfEEvT_", "plain")
PACKINGS = (STORED, LZ4, ZSTD)


def listed(data: bytes, begin: int = 0) -> list[tuple[Image, ...]]:
    return list(containers(lambda at, size: data[at : at + size], begin, len(data)))


@pytest.mark.parametrize("packing", PACKINGS)
def test_each_image_is_where_it_was_put_and_unpacks_to_what_it_was(packing: str) -> None:
    """With a longer header, as the compiler of CUDA 13 writes, and padding between two containers."""
    contents = [cubin(KERNELS, arch_bytes) for arch_bytes in (("f",), ("g",))]
    data = container(
        image(contents[0], CUBIN, 80, packing), image(contents[1], CUBIN, 100, packing, header_bytes=112)
    )  # fmt: skip
    data += bytes(40) + container(image(ptx(KERNELS), PTX, 90, packing))
    first, second = listed(bytes(64) + data, begin=64)
    assert [(one.kind, one.arch, one.packing) for one in first] == [(CUBIN, 80, packing), (CUBIN, 100, packing)]
    assert [(one.kind, one.arch) for one in second] == [(PTX, 90)]
    for found, content in zip((*first, *second), (*contents, ptx(KERNELS)), strict=True):
        stored = (bytes(64) + data)[found.offset :][: found.stored_bytes]
        assert unpack(stored, packing, 1 << 20).startswith(content)
        assert unpack(stored, packing, 100) == content[:100]


def test_kernels_are_named_and_what_they_call_is_not() -> None:
    data = cubin(KERNELS, functions=("_Z6helperv",))
    assert kernels_of_cubin(data) == KERNELS
    assert kernels_of_ptx(ptx(KERNELS)) == KERNELS
    assert kernels_of_cubin(data[:100]) is None
    assert kernels_of_cubin(bytes(100)) == ()


@given(st.binary(max_size=4000), st.integers(1, 64), st.integers(0, 6000))
def test_the_beginning_of_a_block_is_the_beginning_of_what_was_packed(seed: bytes, times: int, most: int) -> None:
    data = seed * times
    stored = packed(data, LZ4) if data else b""
    assert unpack_lz4(stored, most) == data[:most]
    part = unpack_lz4(stored[: len(stored) // 2], most)
    assert data.startswith(part)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=600), st.sampled_from(PACKINGS), st.integers(0, 5000))
def test_any_bytes_unpack_to_no_more_than_was_asked_for(data: bytes, packing: str, most: int) -> None:
    for stored in (data, packed(b"name" * 50, packing)[:40] + data):
        try:
            found = unpack(stored, packing, most)
        except NotUnpacked:
            continue
        assert len(found) <= most


def test_a_frame_that_wants_much_memory_is_refused() -> None:
    frame = b"\x28\xb5\x2f\xfd\x00\xf8" + bytes(30)  # a window of 2 TB
    with pytest.raises(NotUnpacked):
        unpack(frame, ZSTD, 100)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=9)), max_size=8), st.sampled_from(PACKINGS)
)
def test_a_damaged_fat_binary_ends_within_its_section(patches: list[tuple[int, bytes]], packing: str) -> None:
    data = bytearray(fat_binary(KERNELS, packing) * 2)
    for at, patch in patches:
        data[at : at + len(patch)] = patch
    for images in listed(bytes(data)):
        for one in images:
            assert 0 <= one.offset <= one.offset + one.stored_bytes <= len(data)


@given(st.binary(max_size=300))
def test_any_text_has_kernels_or_none(data: bytes) -> None:
    for text in (data, cubin(())[:64] + b"\0.shstrtab\0" + data):
        assert kernels_of_cubin(text) is None or isinstance(kernels_of_cubin(text), tuple)
        assert all(isinstance(name, str) for name in kernels_of_ptx(b".entry " + text))
