"""Generate the C programs of a call table: one text for all rows whose arguments are read alike.

probes/bpf/compiler/variants.py makes one program per row of it.
"""

from __future__ import annotations

from rankscope.probes.bpf.compiler.variants import Generated, Variant
from rankscope.probes.calls.row import LAUNCH, MAX_ROWS, OPERATION_SHIFT, PEER_SHIFT, ROLES, SCOPED
from rankscope.probes.calls.table import CALL_TABLE, CallRow

_REGISTERS = 6  # arguments passed in registers
# constants of an entry program, in this order
_ROW, _SCOPE, _SHORTEST, _TOWARDS = (f"RS_NUMBER({n})" for n in range(4))


def programs(table: tuple[CallRow, ...] = CALL_TABLE) -> Generated:
    """Generate the C to compile behind calls.bpf.c, and its variants, for all rows of the table.

    All rows, so that what was compiled serves the next job too.
    """
    bodies: dict[str, str] = {}  # C function body -> its name
    variants: dict[str, Variant] = {}
    for index, row in enumerate(table):
        entered = bodies.setdefault(_entry(row), f"rs_entry_{len(bodies)}")
        numbers = (index, _scope(index, row), row.shortest_ns, row.towards)
        variants[enter_program(index)] = Variant(enter_program(index), entered, numbers, place=index)
        if row.role != LAUNCH:
            left = bodies.setdefault(f"rs_return(ctx, RS_NUMBER(0), {int(row.throws)})", f"rs_return_{len(bodies)}")
            name = leave_program(index, row)
            variants[name] = Variant(name, left, (_scope(index, row),))
        elif (site := launch_site_program(row)) not in variants:
            located = bodies.setdefault("rs_launch_site(ctx, RS_NUMBER(0))", f"rs_site_{len(bodies)}")
            variants[site] = Variant(site, located, (row.argument,))
    text = "".join(f"int {name}(struct pt_regs *ctx) {{ return {body}; }}\n" for body, name in bodies.items())
    return Generated(text, tuple(variants.values()))


def program_rows(table: tuple[CallRow, ...] = CALL_TABLE) -> tuple[tuple[str, CallRow], ...]:
    """List (name, row) of the programs that run when calls begin and end; launch rows have only the former."""
    return tuple(
        (name, row)
        for index, row in enumerate(table)
        for name in (enter_program(index), *(() if row.role == LAUNCH else (leave_program(index, row),)))
    )


def enter_program(index: int) -> str:
    """Name the program that runs when calls of row `index` begin."""
    return f"rs_enter_{index}"


def leave_program(index: int, row: CallRow) -> str:
    """Name the program that runs when calls of row `index` end; rows with one nesting scope share it."""
    return f"rs_leave_{_scope(index, row)}"


def launch_site_program(row: CallRow) -> str:
    """Name the program that locates some launches of a row; rows that pass the kernel alike share it."""
    return f"rs_launch_site_{row.argument}"


def _scope(index: int, row: CallRow) -> int:
    """Return the nesting scope of a row: shared by rows of a role of which only the outermost call
    counts, else its own.
    """
    return MAX_ROWS + ROLES.index(row.role) if row.role in SCOPED else index


def _entry(row: CallRow) -> str:
    """Return the C expression that a row's entry program evaluates: a call of rs_enter or rs_launch.

    Equal for rows whose arguments are read alike: the row's own numbers are RS_NUMBER constants.
    """
    if row.role == LAUNCH:
        return f"rs_launch(ctx, {_ROW})"
    argument = f"({'s32' if row.int_count and row.argument else 's64'}){_argument(row.argument)}"
    if row.second:
        argument += f" * (s64){_argument(row.second)}"
    picks = (
        (row.datatype, 0xFF, 0),
        (row.operation, 0xFF, OPERATION_SHIFT),
        (row.peer, 0xFFFF, PEER_SHIFT),
    )
    parts = [f"((u32){_argument(position)} & {mask}) << {shift}" for position, mask, shift in picks if position]
    if row.direction:
        parts = [f"rs_direction({_argument(row.direction)})"]
    if row.handle:
        parts = [f"(u32){_argument(row.handle)}"]
    aux = " | ".join(parts) or _TOWARDS
    return (
        f"rs_enter(ctx, {_ROW}, {_SCOPE}, {_SHORTEST}, {int(row.throws)}, (s64)({argument}), {aux}, "
        f"(u64){_argument(row.object)})"
    )


def _argument(position: int) -> str:
    """Return the C expression that reads a function's argument at a position, counted from 1; '0' for position 0."""
    if not position:
        return "0"
    return f"PT_REGS_PARM{position}(ctx)" if position <= _REGISTERS else f"rs_stack_argument(ctx, {position})"
