"""Programs for aarch64 are compiled on any machine, and read the registers that are meant there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rankscope.probes.bpf import loader
from rankscope.probes.bpf.compiler.compiled import ProgramCode, compile_text
from rankscope.probes.bpf.programs import INSTRUCTION
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.row import CallRow

LOAD_U64 = 0x79  # BPF_LDX | BPF_MEM | BPF_DW
ROWS = (
    CallRow("libtorch_cpu.so", "_ZN4c10d5fence", "fence", "collective", 3, object=7),
)  # may throw, as its name says
# Bytes into struct pt_regs of the stack pointer, the third and the seventh argument, and where the function returns to; the last two are on
# the stack of x86-64. arch/x86/include/asm/ptrace.h, arch/arm64/include/uapi/asm/ptrace.h.
REGISTERS = {"x86_64": {152, 96}, "aarch64": {31 * 8, 2 * 8, 6 * 8, 30 * 8}}


def _loaded(program: ProgramCode) -> set[int]:
    """Offsets, from any pointer, at which the program loads a whole register."""
    code: npt.NDArray[np.void] = np.frombuffer(program.code, INSTRUCTION)
    return {int(offset) for offset in code["offset"][code["operation"] == LOAD_U64] if offset > 0}


@pytest.mark.parametrize("machine", list(loader.MACHINES))
def test_arguments_stack_pointer_and_caller_are_read_where_the_machine_has_them(machine: str) -> None:
    generated = programs(ROWS)
    made = compile_text(loader.join([calls.SOURCE], []) + generated.text, loader.MACHINES[machine])
    entry = next(one for one in made.programs if one.name == "rs_entry_0")
    leave = next(one for one in made.programs if one.name.startswith("rs_return_"))
    others = {name: loaded for name, loaded in REGISTERS.items() if name != machine}
    assert _loaded(entry) >= REGISTERS[machine]
    assert not any(_loaded(entry) >= loaded for loaded in others.values())
    assert _loaded(leave) & {152, 31 * 8} == REGISTERS[machine] & {152, 31 * 8}


def test_the_probes_of_another_machine_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader.platform, "machine", lambda: "riscv64")
    with pytest.raises(loader.BpfUnavailable, match="riscv64"):
        loader.machine()
