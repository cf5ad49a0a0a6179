"""The C library is known by the names that it has had, and a job's own libraries are none of it."""

from __future__ import annotations

import pytest

from rankscope.probes.elf.c_library import is_c_library


@pytest.mark.parametrize(
    "name",
    ["libc.so.6", "libc-2.31.so", "libpthread-2.31.so", "librt.so.1", "ld-linux-x86-64.so.2", "ld-musl-x86_64.so.1"],
)
def test_the_c_library_of_old_and_new_systems(name: str) -> None:
    assert is_c_library(name)


@pytest.mark.parametrize(
    "name", ["", "libtorch_cpu.so", "libcuda.so.1", "libcrypto.so.3", "libcxx.so", "python3.11", "kernel"]
)
def test_what_a_job_brings_along_is_none(name: str) -> None:
    assert not is_c_library(name)
