"""Loops from bytecode, as interpreters have specialised it, and from noise."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pythons import KNOWN

from rankscope.unwinder.names.bytecode import _OPCODES, LOOPS_CAP, around, loops

PROGRAM = Path(__file__).parent / "loops_program.py"
# Lines of `work`, and how many loops each lies in.
DEPTHS = {1: 0, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 10: 1, 14: 2, 16: 1, 17: 0}


VERSIONS = [minor for minor in KNOWN if minor <= 13]


def lines(minor: int, function: int) -> dict[int, tuple[int, ...]]:
    """Of the program's `work` (0) or `long_work` (1): the loops around each line."""
    output = subprocess.run([KNOWN[minor], str(PROGRAM)], capture_output=True, check=True, timeout=60).stdout
    code, units = json.loads(output)[function]
    found = loops(minor, bytes.fromhex(code))
    return {int(line): around(found, unit) for line, unit in units.items()}


@pytest.mark.parametrize("minor", VERSIONS)
def test_each_line_lies_in_its_loops(minor: int) -> None:
    lies_in = lines(minor, 0)
    assert {line: len(lies_in[line]) for line in DEPTHS} == DEPTHS
    assert lies_in[4] == lies_in[8] and lies_in[4][:1] == lies_in[10] == lies_in[14][:1]
    assert lies_in[4] != lies_in[14] and lies_in[16] != lies_in[10]


@pytest.mark.parametrize("minor", VERSIONS)
def test_a_loop_whose_jump_back_is_long_is_one_of_its_own(minor: int) -> None:
    lies_in = lines(minor, 1)
    assert [len(lies_in[line]) for line in (3, 4, 5, 6)] == [2, 1, 1, 0]
    assert lies_in[3][:1] == lies_in[4]


def header(minor: int, *names: str) -> str:
    """The interpreter's own headers of these names, one after the other."""
    ask = "import sysconfig; print(sysconfig.get_path('include'))"
    folder = Path(subprocess.run([KNOWN[minor], "-c", ask], capture_output=True, check=True, text=True).stdout.strip())
    return "".join(path.read_text() for name in names if (path := folder / name).exists())


@pytest.mark.parametrize("minor", [minor for minor in VERSIONS if minor >= 11])
def test_what_follows_an_instruction_is_what_the_interpreter_says(minor: int) -> None:
    public = header(minor, "opcode.h", "opcode_ids.h")
    internal = header(minor, "internal/pycore_opcode.h", "internal/pycore_opcode_metadata.h")
    if not internal:
        pytest.skip(f"no headers of CPython 3.{minor} here")
    number = {name: int(value) for name, value in re.findall(r"#define ([A-Z]\w+)\s+(\d+)", public)}

    def table(of: str) -> dict[str, str]:
        body = re.search(rf"_PyOpcode_{of}\[256\] = {{(.*?)}};", internal, re.DOTALL)
        assert body is not None
        return dict(re.findall(r"\[(\w+)\] = (\w+)", body[1]))

    caches, plain, ours = table("Caches"), table("Deopt"), _OPCODES[minor]
    specialised = {
        name: plain[name].removeprefix("INSTRUMENTED_") for name in plain if name in number and name != "CACHE"
    }
    assert len(specialised) > 150
    for name, base in specialised.items():
        assert (name, ours.caches[number[name]]) == (name, int(caches.get(base, 0)))
        assert (number[name] in ours.extended) == (base == "EXTENDED_ARG")
        jumps_back = base.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD")) and "NO_INTERRUPT" not in base
        assert (name, number[name] in ours.backward) == (name, jumps_back)


def test_a_version_that_is_not_known_has_no_loops() -> None:
    assert loops(99, bytes([140, 1] * 8)) == ()


@given(st.integers(7, 16), st.binary(max_size=3000))
def test_noise_gives_loops_that_hold_each_other_or_lie_apart(minor: int, code: bytes) -> None:
    found = loops(minor, code)
    assert len(found) <= LOOPS_CAP
    for at, (first, last) in enumerate(found):
        assert 0 <= first <= last < len(code)
        assert all(after > last or last >= until for after, until in found[at + 1 :])
