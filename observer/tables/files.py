"""Name a thread's file calls: I/O if they reach a file, waiting for others if a pipe or a socket."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankscope.observer.thread import timeline
from rankscope.observer.thread.functions import FunctionKey
from rankscope.probes.base.arrays import Ints
from rankscope.probes.bpf.ring import Events
from rankscope.probes.files import probe as files

_OTHER_FILE_KINDS = {
    files.FIFO: ("sync", "pipe", timeline.SYNC),
    files.SOCKET: ("sync", "socket", timeline.SYNC),
    files.CHARACTER: ("io", "device", timeline.IO),
}


def file_functions(reads: Events, devices: Mapping[int, str]) -> tuple[list[FunctionKey], Ints]:
    """Return for each file call its function, and its class in the timeline (timeline.IO or SYNC).

    `reads`: FILE events; `devices`: kernel device number -> words.
    """
    named: dict[tuple[int, int], tuple[FunctionKey, int]] = {}
    found: list[FunctionKey] = []
    kinds: list[int] = []
    for what, device in zip(reads["what"].tolist(), reads["aux"].tolist(), strict=True):
        if (what, device) not in named:
            operation, action = (
                files.OPERATIONS[what & 0xFF] if what & 0xFF < len(files.OPERATIONS) else ("file", "file")
            )
            other = _OTHER_FILE_KINDS.get(what >> 8)
            if other is not None:
                kind, name, line_kind = other
                named[what, device] = FunctionKey(kind, name, detail=operation), line_kind
            else:
                where = devices.get(device, "device {}:{}".format(*files.device_numbers(device)))
                name = "fsync" if action == "sync" else action
                named[what, device] = FunctionKey("io", name, detail=where, resource="disk"), timeline.IO
        function, line_kind = named[what, device]
        found.append(function)
        kinds.append(line_kind)
    return found, np.array(kinds, dtype=np.int64)
