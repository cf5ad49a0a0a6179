"""The collector is found in every build that is here, and where a file says the truth itself, it is that."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.elf.exports import find_functions
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import AARCH64
from rankscope.unwinder.errors import UnsupportedInterpreter
from rankscope.unwinder.interpreter import gc


def files() -> dict[str, tuple[int, int]]:
    """Interpreter files of this machine, of all places that keep several."""
    home = Path.home() / ".pyenv" / "versions"
    candidates = [
        *sorted(home.glob("3.*/lib/libpython3.*.so.1.0")),
        *sorted(Path("/usr/bin").glob("python3.*")),
        *sorted(Path("/usr/lib").glob("*/libpython3.*.so.1.0")),
    ]
    found = {}
    for path in candidates:
        match = re.fullmatch(r"(?:lib)?python3\.(\d+)(?:\.so\.1\.0)?", path.name)
        if match and int(match[1]) >= 8 and not path.is_symlink():
            found[str(path)] = (3, int(match[1]))
    return found


FILES = files()


@pytest.mark.parametrize("path", FILES)
def test_the_collector_is_what_the_symbol_table_calls_it(path: str) -> None:
    found = gc.find_collectors(LocalFile(Path(path)), FILES[path])
    names = re.compile(r"(gc_collect_main|collect)(\.constprop\.\d+|\.isra\.\d+)*")
    table = subprocess.run(["nm", path], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in table.splitlines()]
    said = sorted(int(row[0], 16) for row in rows if len(row) == 3 and row[1] in "tT" and names.fullmatch(row[2]))
    if said:
        assert list(found) == said
    assert 1 <= len(found) <= 2


@pytest.mark.parametrize("path", FILES)
def test_the_collector_reads_the_switch_of_the_builds_own_trace_point(path: str) -> None:
    """Builds with USDT notes test a semaphore at the start of each collection: that must lie in what was found."""
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Name: gc__start\s+Location: \S+ Base: \S+ Semaphore: (0x[0-9a-f]+)", notes)
    if match is None:
        pytest.skip("built without --with-dtrace")
    (start,) = gc.find_collectors(LocalFile(Path(path)), FILES[path])
    text = subprocess.run(
        ["objdump", "-d", f"--start-address={start}", f"--stop-address={start + gc.LEAST_BYTES}", path],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert f"# {int(match[1], 16):x} " in text


def test_a_file_without_the_entry_point_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int nothing(void) { return 3; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "a.so", tmp_path / "a.c"], check=True)
    with pytest.raises(UnsupportedInterpreter, match="not exported"):
        gc.find_collectors(LocalFile(tmp_path / "a.so"), (3, 11))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library whose PyGC_Collect calls one large hidden function through a small one."""
    folder = tmp_path_factory.mktemp("gc")
    body = " ".join(f"total += data[(total * {i}) & 255] ^ {i};" for i in range(1, 150))
    (folder / "g.c").write_text(
        "volatile int data[256];\n"
        f"static __attribute__((noinline)) int collector(int total) {{ {body} return total; }}\n"
        "static __attribute__((noinline)) int between(int a) { return collector(a + 1) + 1; }\n"
        "int PyGC_Collect(void) { return between(3) * 2; }\n"
    )
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "g.so", folder / "g.c"], check=True)
    found = find_functions(LocalFile(folder / "g.so"), ["collector"])["collector"]
    assert gc.find_collectors(LocalFile(folder / "g.so"), (3, 11)) == (found[0].address,)
    return (folder / "g.so").read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_searched_but_never_fatal(small: bytes, data: st.DataObject) -> None:
    image = bytearray(small)
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(image) - 8))
        struct.pack_into("<Q", image, at, data.draw(st.integers(0, 2**64 - 1)))
    descriptor = os.memfd_create("damaged")
    with os.fdopen(descriptor, "r+b") as file:
        file.write(image[: data.draw(st.integers(64, len(image)))])
        file.flush()
        with contextlib.suppress(UnsupportedInterpreter):
            gc.find_collectors(LocalFile(Path(f"/proc/self/fd/{descriptor}")), (3, 11))


def test_calls_of_aarch64_lead_where_their_26_bits_say() -> None:
    nop, call_8_on, jump_back, call_far_back = 0xD503201F, 0x94000002, 0x17FFFFFF, 0x96000000
    code = struct.pack("<5I3x", nop, call_8_on, 0x54000040, jump_back, call_far_back)  # the third one is conditional
    assert gc._CALLS_OF[AARCH64](code).tolist() == [4 + 8, 12 - 4, 16 - (1 << 27)]
