"""Programs that differ in numbers alone are compiled once; what they read of the kernel is what the kernel says."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from rankscope.probes.bpf import tracepoints
from rankscope.probes.bpf.compiler import variants
from rankscope.probes.bpf.compiler.compiled import Compiled, CompileFailed, NotCompiled, ProgramCode
from rankscope.probes.bpf.compiler.variants import Generated, Variant, with_numbers
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls.programs import leave_program, programs
from rankscope.probes.calls.row import HOST_ROLES, LAUNCH, MAX_ROWS, ROLES
from rankscope.probes.calls.table import CALL_TABLE, CallRow
from rankscope.probes.files import probe as files

ROOT = Path(__file__).parents[3]
HEADER = (ROOT / "probes/bpf/kernel.bpf.h").read_text()
SCHED_SWITCH = """name: sched_switch
ID: 372
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;
	field:unsigned char common_preempt_lazy_count;	offset:8;	size:1;	signed:0;

	field:char prev_comm[16];	offset:12;	size:16;	signed:0;
	field:pid_t prev_pid;	offset:28;	size:4;	signed:1;
	field:long prev_state;	offset:32;	size:8;	signed:1;
	field:__data_loc char[] name;	offset:40;	size:4;	signed:0;
	field:const char * buf;	offset:48;	size:8;	signed:0;
	field:unsigned long args[6];	offset:56;	size:48;	signed:0;

print fmt: "prev_comm=%s field:int no; offset:1; size:4; signed:1;"
"""


def _move(register: int, number: int) -> bytes:
    return struct.pack("<BBhi", 0xB7, register, 0, number)


def test_a_number_takes_the_place_that_the_text_gave_it() -> None:
    wide = struct.pack(
        "<BBhiBBhi", 0x18, 0x02, 0, variants.NUMBERS + 1, 0, 0, 0, 0
    )  # loads 64 bits: not a number of ours
    code = (
        _move(1, variants.NUMBERS + 1)
        + _move(2, 7)
        + wide
        + _move(3, variants.NUMBERS)
        + _move(4, variants.NUMBERS + 1)
    )
    assert with_numbers(code, (41, 42)) == _move(1, 42) + _move(2, 7) + wide + _move(3, 41) + _move(4, 42)
    assert with_numbers(_move(2, 7), ()) == _move(2, 7)


@pytest.mark.parametrize("numbers", [(), (1,), (1, -1), (1, 1 << 31)])
def test_a_number_that_is_missing_or_does_not_fit_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(NotCompiled):
        with_numbers(_move(1, variants.NUMBERS + 1), numbers)


def test_a_program_counts_in_its_place_and_in_another_where_that_is_said() -> None:
    place = variants.NUMBERS + 0xFFFF
    code = _move(1, place) + _move(2, variants.NUMBERS)
    assert with_numbers(code, (7,), 300) == _move(1, 300) + _move(2, 7)
    with pytest.raises(NotCompiled):
        with_numbers(code, (7,))
    assert {f"rs_enter_{index}": index for index in range(len(CALL_TABLE))} == {
        one.name: one.place for one in programs().variants if one.place >= 0
    }


def test_numbers_of_the_host_are_put_in_beside_those_of_the_program() -> None:
    code = _move(1, variants.NUMBERS + variants.HOST + 1) + _move(2, variants.NUMBERS)
    assert with_numbers(code, (7,), host=(0, 2592)) == _move(1, 2592) + _move(2, 7)
    with pytest.raises(NotCompiled, match="its number 32769"):
        with_numbers(code, (7,), host=(1,))


def test_a_program_that_counts_nowhere_is_not_loaded_for_a_place() -> None:
    made = {one.name: one for one in programs().variants}
    module = Module(Compiled((), (ProgramCode(made["rs_leave_0"].of, _move(1, 2)),), "GPL", ()), {}, variants=made)
    with pytest.raises(ValueError, match="same in all places"):
        module.program("rs_leave_0", place=300)


def test_the_numbers_are_those_of_the_c() -> None:
    (said,) = re.findall(r"#define RS_NUMBERS (\w+)", (ROOT / "probes/bpf/common.bpf.h").read_text())
    assert int(said, 0) == variants.NUMBERS


def _variants(generated: Generated) -> dict[str, Variant]:
    for one in generated.variants:
        assert f"int {one.of}(" in generated.text
        asked = [int(n) for n in re.findall(r"RS_NUMBER\((\d+)\)", _text_of(generated, one.of))]
        assert set(asked) <= set(range(len(one.numbers)))
    return {one.name: one for one in generated.variants}


def _text_of(generated: Generated, name: str) -> str:
    (text,) = (line for line in generated.text.splitlines() if line.startswith(f"int {name}("))
    return text


def test_every_row_of_the_call_table_has_its_programs() -> None:
    generated = programs()
    made = _variants(generated)
    assert {made[f"rs_launch_site_{at}"].numbers for at in (0, 1, 2)} == {(0,), (1,), (2,)}
    assert len(generated.text.splitlines()) < len(CALL_TABLE) / 4
    for index, row in enumerate(CALL_TABLE):
        assert made[f"rs_enter_{index}"].numbers[0] == index
        # Rows of one of these roles end in one program; launches are counted when they begin.
        assert (f"rs_leave_{index}" in made) == (row.role in HOST_ROLES)
        if row.role != LAUNCH:
            scope = index if row.role in HOST_ROLES else MAX_ROWS + ROLES.index(row.role)
            assert made[f"rs_enter_{index}"].numbers[1] == scope == made[leave_program(index, row)].numbers[0]
            assert f", {int(row.throws)})" in _text_of(generated, made[leave_program(index, row)].of)


@pytest.mark.parametrize(
    ("row", "reads"),
    [
        (CallRow("libcuda.so", "cuLaunchKernel", "launch", "launch", whole=True), "rs_launch(ctx, RS_NUMBER(0))"),
        (CallRow("libnccl.so", "ncclAllReduce", "allreduce", "collective", 3), "(s64)((s64)PT_REGS_PARM3(ctx))"),
        (CallRow("libmpi.so", "MPI_Send", "send", "collective", 2, int_count=True), "(s64)((s32)PT_REGS_PARM2(ctx))"),
        (CallRow("libnccl.so", "ncclReduce", "reduce", "enqueue", 3, object=7), "(u64)rs_stack_argument(ctx, 7))"),
        (CallRow("libcuda.so", "cuMemcpy", "copy", "memory", 3, towards=2), "RS_NUMBER(3), (u64)0)"),
        (
            CallRow("libcuda.so", "cudaMemcpy", "copy", "memory", 3, direction=4),
            "rs_direction(PT_REGS_PARM4(ctx)), (u64)0)",
        ),
    ],
)
def test_an_entry_reads_the_arguments_that_its_row_names(row: CallRow, reads: str) -> None:
    generated = programs((row,))
    one = _variants(generated)["rs_enter_0"]
    assert reads in _text_of(generated, one.of)
    assert row.role == LAUNCH or one.numbers[2:] == (row.shortest_ns, row.towards)


def test_every_file_operation_has_its_two_tracepoints() -> None:
    made = _variants(files.programs())
    points = files.tracepoints()
    assert len(points) == 2 * len(files.OPERATIONS) == len(made)
    for index, (call, _) in enumerate(files.OPERATIONS):
        assert made[f"rs_file_in_{index}"].numbers == (index,)
        assert {point.event for point in points if point.function.endswith(f"_{index}")} == {
            f"syscalls:sys_{side}_{call}" for side in ("enter", "exit")
        }


def _format(root: Path, event: str, layout: str) -> None:
    folder = root / "sys/kernel/debug/tracing/events" / event.replace(":", "/")
    folder.mkdir(parents=True)
    (folder / "format").write_text(layout)


def _read(offset: int, bytes_: int = 4) -> bytes:
    sizes = {1: 0x71, 2: 0x69, 4: 0x61, 8: 0x79}
    return struct.pack("<BBhi", sizes[bytes_], 0x12, offset, 0)


def test_the_records_that_a_text_asks_for_are_declared_once_and_the_same_on_all_kernels() -> None:
    text = "int a(struct rs_at__sched__sched_switch *args);\nint b(struct rs_at__sched__sched_switch *args);\n"
    assert tracepoints.declarations(text) == (
        "struct rs_at__sched__sched_switch { char rs_gap_0[20484]; char prev_comm[16]; char rs_gap_20500[12]; int prev_pid; "
        "char rs_gap_20516[28]; long prev_state; char rs_gap_20552[24]; int next_pid; };\n"
    )
    with pytest.raises(CompileFailed, match="sched:sched_wakeup"):
        tracepoints.declarations("int c(struct rs_at__sched__sched_wakeup *args);")


def test_a_field_is_read_where_this_kernel_has_it(tmp_path: Path) -> None:
    """A kernel for real time has a field more before those of the tracepoint: all others lie elsewhere."""
    _format(tmp_path, "sched:sched_switch", SCHED_SWITCH)
    comm, pid, state = 0x5004, 0x5020, 0x5040
    ours = _read(comm) + _read(comm + 12) + _read(pid) + _read(state, 1) + _read(2048, 8) + _move(1, pid)
    assert tracepoints.placed(ours, tmp_path) == (
        _read(12) + _read(24) + _read(28) + _read(32, 1) + _read(2048, 8) + _move(1, pid)
    )


def test_a_record_without_the_field_or_with_another_size_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no tracepoint sched:sched_switch"):
        tracepoints.placed(_read(0x5020), tmp_path)
    _format(tmp_path, "sched:sched_switch", SCHED_SWITCH.replace("offset:28;\tsize:4", "offset:28;\tsize:8"))
    with pytest.raises(ValueError, match="prev_pid has 8 bytes"):
        tracepoints.placed(_read(0x5020), tmp_path)
    with pytest.raises(ValueError, match="next_pid has 0 bytes"):
        tracepoints.placed(_read(0x5060), tmp_path)


def test_no_structure_of_ours_reaches_to_where_fields_of_records_are_compiled_to() -> None:
    """By the largest one that a program looks into."""
    stack = (ROOT / "unwinder/walk/walk.bpf.h").read_text()
    (frames,) = re.findall(r"#define RS_MAX_FRAMES (\d+)", stack)
    assert 16 + 16 * int(frames) < 0x5000


def test_the_numbers_of_helpers_are_those_of_the_kernel() -> None:
    """Where the kernel's headers for programs are installed; numbers are never given away again."""
    try:
        text = Path("/usr/include/linux/bpf.h").read_text()
    except FileNotFoundError:
        pytest.skip("no kernel headers for programs here")
    said = re.findall(r"^\tFN\((\w+), (\d+), ", text, re.MULTILINE)
    if not said:  # before Linux 6.2 they are counted
        names = re.findall(r"^\tFN\((\w+)\)", text, re.MULTILINE)
        said = [(name, str(number)) for number, name in enumerate(names)]
    number_of = {f"bpf_{name}": int(number) for name, number in said}
    ours = {name: int(number) for name, number in re.findall(r"\(\*(\w+)\)\([^;]*\) = \(void \*\)(\d+);", HEADER)}
    renamed = {"rs_read_user": "bpf_probe_read_user", "rs_read_kernel": "bpf_probe_read_kernel"}
    assert len(ours) == 10 and all(number_of[renamed.get(name, name)] == number for name, number in ours.items())
