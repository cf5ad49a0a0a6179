"""What scripts/chaos takes for left in the kernel: what nobody holds, and not what others have loaded meanwhile."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_leaves_nothing import OBSERVE, SLEEPER

from campaignkit.chaos import kernel
from rankscope.probes.bpf.syscalls import call

pytestmark = pytest.mark.alone  # what others leave on the host would be told as left

_MAP_CREATE, _OBJ_PIN, _ARRAY = 0, 6, 2
_NO_SESSION = 1


@pytest.fixture
def pins(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "pins"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def made_map() -> int:
    attributes = b"".join(number.to_bytes(4, "little") for number in (_ARRAY, 4, 8, 1))
    return call(_MAP_CREATE, ctypes.create_string_buffer(attributes, 128))


def test_a_map_that_is_held_by_nobody_is_left_and_one_that_somebody_holds_is_not(pins: Path) -> None:
    before = kernel.held()
    held = made_map()
    assert kernel.left(before, _NO_SESSION, patience_s=0.3) == []
    path = ctypes.create_string_buffer(str(pins / "stays").encode())
    pinned = ctypes.addressof(path).to_bytes(8, "little") + held.to_bytes(4, "little")
    call(_OBJ_PIN, ctypes.create_string_buffer(pinned, 16))
    os.close(held)
    (left,) = kernel.left(before, _NO_SESSION, patience_s=0.3)
    assert left.startswith("map ")
    (pins / "stays").unlink()
    assert kernel.left(before, _NO_SESSION) == []


def test_what_an_observer_of_others_has_loaded_meanwhile_is_not_counted(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    target = program(SLEEPER)
    before = kernel.held()
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVE, str(target.pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert observer.stdout is not None
        assert observer.stdout.readline().strip() == "observing"
        loaded = kernel.held().beyond(before).objects
        assert {kind for kind, _ in loaded} >= {"program", "map"}
        assert kernel.left(before, _NO_SESSION, patience_s=0.3) == []
    finally:
        observer.kill()
        observer.wait()
    assert kernel.left(before, _NO_SESSION) == []
