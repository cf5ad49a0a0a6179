"""Attach uprobes to functions that another tool probes as well.

All probes at one place of a file must agree on the place of their reference counter (the number by
which a program knows that a USDT point is watched; 0 for none). A probe that disagrees is refused
with EINVAL, and only the kernel's log says why. Probes on functions have none, but bcc's Python
binding of the years 2020 to 2025 (at least 0.17 to 0.26) leaves out that argument of
bpf_attach_uprobe, and the kernel uses whatever is on the stack: as long as such a tool watches a
function of libtorch, nobody else can (github.com/iovisor/bcc/issues/5236).

So when a probe is refused, we read the other probe's counter from the log and request the same. The
kernel increments the counter where the file is mapped writable, which we must never cause: a
counter in a writable part of the file is not adopted. Therefore the process that attaches reads
counters from the log itself, and accepts none from other processes. Source: Linux
kernel/events/uprobes.c (insert_uprobe, valid_ref_ctr_vma).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.elf.exports import written_parts
from rankscope.probes.elf.reader import FileBytes
from rankscope.probes.host import kmsg
from rankscope.probes.host.kmsg import KernelMessage
from rankscope.probes.host.procfs import ROOT

# Every refusal names one place. Other tools' probes are on function entries, of which a row has
# few.
_MAX_PLACES = 8
_COUNTER_BYTES = 2
_DISAGREEMENT = re.compile(
    r"ref_ctr_offset mismatch\. inode: 0x[0-9a-f]+ offset: 0x([0-9a-f]+)"
    r" ref_ctr_offset\(old\): 0x([0-9a-f]+) ref_ctr_offset\(new\): 0x([0-9a-f]+)"
)


class PlaceTaken(RankscopeError):
    """Another tool's probes on these functions exclude ours."""

    help = "End the other tool (bcc and bpftrace programs, older observers), or observe when it has ended."


def attach(
    attach_with: Callable[[Mapping[int, int]], tuple[int, ...]],
    library: FileBytes,
    offsets: Collection[int],
    root: Path = ROOT,
) -> tuple[int, ...]:
    """Call `attach_with` without counters; if the kernel refuses, call it again with other tools' counters.

    It gets each counter's file offset by that of the probe, and returns descriptors, which are returned.
    `offsets`: of the probes in the file. Raises PlaceTaken, OSError.
    """
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
    """Call `attach_with`, each time with the counters of other tools' probes that the kernel's log names.

    `logged` returns new messages of the log. Returns the first success. Raises PlaceTaken where such a
    counter lies in writable data of the file, OSError where the kernel refuses for another reason.
    """
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
    """Parse other tools' counters, as file offset by that of the probe, from kernel messages about refused requests.

    `asked`: the counters that we requested; messages about other requests are skipped. Another process's
    messages may match too, which does no harm: any counter that nobody writes to is as good, as long as all
    agree. The inode is not compared, because for a file in an overlay stat(2) reports another one.
    """
    found: dict[int, int] = {}
    for message in messages:
        if (match := _DISAGREEMENT.search(message.text)) is not None:
            place, theirs, ours = (int(number, 16) for number in match.groups())
            if ours == asked.get(place, 0):
                found[place] = theirs
    return found


def _is_written(library: FileBytes, counter: int) -> bool:
    """Tell whether a counter (file offset, 0: none) lies in a writable mapping, where the kernel would change it.

    Raises NotElf, OSError.
    """
    return counter != 0 and any(
        begin < counter + _COUNTER_BYTES and counter < end for begin, end in written_parts(library)
    )
