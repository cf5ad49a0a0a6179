"""Run one inspection of other users' processes in a confined process; the result comes back as data.

For what needs no probes: finding ranks, or the functions of their libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rankscope.observer.apart import plain, wire
from rankscope.observer.apart.confined import Progress
from rankscope.observer.apart.reading import Reading
from rankscope.observer.apart.run import run
from rankscope.observer.apart.wire import Client
from rankscope.probes.base.errors import BadData

# seconds; 10,000 processes take 0.5 s; file systems that do not answer 8 s, a library of 130 MB
# some
LONGEST_S = 60.0
_MOST_BYTES = 32 << 20  # 10,000 processes take 2 MB
_Seen = TypeVar("_Seen")


def look(
    at: Callable[[], _Seen], kind: type[_Seen], progress: Progress = lambda _: None, *,
    longest_s: float = LONGEST_S, gpus: bool = False, verbose: bool = False,
) -> _Seen:  # fmt: skip
    """Call `at` in a confined process and return its result, a dataclass of type `kind`.

    `gpus`: whether it uses their library. Raises what `at` raises; OutOfMemory, ObserverEnded (also
    after `longest_s`); BadData.
    """
    found: list[_Seen] = []

    def work(client: Client) -> None:
        """Call `at` in the confined process, and send its packed result."""
        seen = plain.pack(at())
        client.tell("seen", (wire.file_in_memory("seen", lambda file: file.write(seen)),))  # it ends with this process

    def heard(told: dict[str, Any], handed: Sequence[int]) -> bool:
        """Unpack the result into `found`; return False for any other message."""
        if told.get("what") != "seen":
            return False
        found[:] = [plain.unpack(kind, _content(handed))]
        return True

    run(work, Reading(), heard, progress, gpus=gpus, verbose=verbose, longest_s=longest_s)
    if not found:
        raise BadData("the observing process sent nothing")
    return found[0]


def _content(handed: Sequence[int]) -> bytes:
    """Seal and read the one file in memory that was sent. Raises BadData unless it is one, of acceptable size."""
    if len(handed) != 1:
        raise BadData("the observing process sent no file")
    wire.seal(handed)
    if os.fstat(handed[0]).st_size > _MOST_BYTES:
        raise BadData(f"the observing process sent more than {_MOST_BYTES >> 20} MB")
    with os.fdopen(os.dup(handed[0]), "rb") as file:
        file.seek(0)
        return file.read()
