"""Attaching uprobes to functions that another tool probes as well.

All probes at one place of a file must agree on one thing, where their reference counter is (the number by which a program
knows that a USDT point is watched; 0 for none). A probe that disagrees is refused with EINVAL, and only the kernel's log says
why. Probes on functions have none, but bcc's Python binding of the years 2020 to 2025 (at least 0.17 to 0.26) leaves out
that argument of bpf_attach_uprobe, and the kernel is told what happens to be on the stack: as long as such a tool watches
a function of libtorch, nobody else can (github.com/iovisor/bcc/issues/5236).

So when a place is refused, the log says which counter the other one has, and ours names the same. The kernel adds one to the
counter where the file is mapped writable, which must never be by our doing: a counter in a writable part of the file is not
taken over. So whoever has the right to attach finds counters out himself, and is told none by others.
Source: Linux kernel/events/uprobes.c (insert_uprobe, valid_ref_ctr_vma).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from rankscope.probes.elf.exports import written_parts
from rankscope.probes.elf.reader import FileBytes
from rankscope.probes.errors import RankscopeError
from rankscope.probes.host import kmsg
from rankscope.probes.host.kmsg import KernelMessage
from rankscope.probes.host.procfs import ROOT

# Every refusal names one place. Other tools' probes are on the entries of functions, of which a row has few.
_MAX_PLACES = 8
_COUNTER_BYTES = 2
_DISAGREEMENT = re.compile(
    r"ref_ctr_offset mismatch\. inode: 0x[0-9a-f]+ offset: 0x([0-9a-f]+)"
    r" ref_ctr_offset\(old\): 0x([0-9a-f]+) ref_ctr_offset\(new\): 0x([0-9a-f]+)"
)


class PlaceTaken(RankscopeError):
    """Another tool has probes on these functions with which ours cannot be."""

    help = "End the other tool (bcc and bpftrace programs, older observers), or observe when it has ended."


def attach(
    attach_with: Callable[[Mapping[int, int]], tuple[int, ...]],
    library: FileBytes,
    offsets: Collection[int],
    root: Path = ROOT,
) -> tuple[int, ...]:
    """What `attach_with` returns, given no counters or, where the kernel refuses, those of others. PlaceTaken, OSError."""
    try:
        return attach_with({})
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        refusal = error
    with contextlib.ExitStack() as opened:
        try:
            logged = opened.enter_context(kmsg.following(root))
        except OSError as error:
            reason = f"{refusal.strerror}; the kernel's log, which says why, cannot be read: {error.strerror}"
            raise PlaceTaken(reason) from refusal
        return _attach_agreeing(attach_with, library, offsets, logged)


def _attach_agreeing(
    attach_with: Callable[[Mapping[int, int]], tuple[int, ...]],
    library: FileBytes,
    offsets: Collection[int],
    logged: Callable[[], tuple[KernelMessage, ...]],
) -> tuple[int, ...]:
    counters: dict[int, int] = {}
    for left in range(min(len(offsets), _MAX_PLACES), -1, -1):
        try:
            return attach_with(counters)
        except OSError as error:
            said = disagreements(logged(), counters)
            others = {place: counter for place, counter in said.items() if place in offsets}
            if error.errno != errno.EINVAL or not others or not left:
                raise
        for place, counter in others.items():
            if _is_written(library, counter):
                raise PlaceTaken(f"another tool has a probe there ({place:#x}) with a counter in the program's data")
        counters |= others
    raise AssertionError("the last round returns or raises")


def disagreements(messages: Iterable[KernelMessage], asked: Mapping[int, int]) -> dict[int, int]:
    """Counters that others have, by place, from the kernel's answers to somebody who asked for what we `asked` for.

    Whose answer it was does not matter: one counter is as good as another that nobody writes to, as long as all agree. The
    inode is not compared, because that of a file in an overlay is not the one that stat(2) tells.
    """
    found: dict[int, int] = {}
    for message in messages:
        if (match := _DISAGREEMENT.search(message.text)) is not None:
            place, theirs, ours = (int(number, 16) for number in match.groups())
            if ours == asked.get(place, 0):
                found[place] = theirs
    return found


def _is_written(library: FileBytes, counter: int) -> bool:
    """Whether a process has the counter in memory that the kernel would write to. Raises NotElf, OSError."""
    return counter != 0 and any(
        begin < counter + _COUNTER_BYTES and counter < end for begin, end in written_parts(library)
    )
