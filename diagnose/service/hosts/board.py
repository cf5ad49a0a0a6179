"""Messages between the hosts of a job in a shared store, and the windows stored there. Calls may block on the store.

Messages make services record, judge and drain. So in a folder only files that root alone can have
written are accepted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankscope.diagnose.infer.fleet.sources import Source, Sources
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import clean
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.keys import message_key, moment
from rankscope.observer.window.store.place import Store, open_store
from rankscope.probes.base.errors import BadData
from rankscope.probes.base.strict_json import parsed

TRIGGER, TURN, VERDICT = "trigger", "turn", "verdict"
# A trigger is put some seconds before its slot. One that came so long before is from a host whose
# clock was ahead, about a trouble that is over. Buckets refuse hosts whose clock is so far off; the
# server of a folder accepts all, whatever its own clock is.
_EARLY_S = 900.0


@dataclass(frozen=True, slots=True)
class Board:
    """Messages and windows in one store. Methods raise StoreFailed, UsageError."""

    uri: str
    most_bytes: int = 4 << 20  # a verdict with the stacks of ten thousand ranks

    def put(self, what: str, job: str, start: float, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """Put a message unless there is one already; return the stored one, None if unreadable.

        `what`: TRIGGER, TURN or VERDICT; `start`: begin of the look it is about, Unix time. Raises UnsafePlace,
        as `get`.
        """
        objects.put_new(self._store, message_key(what, job, start), json.dumps(content, ensure_ascii=False).encode())
        return self.get(what, job, start)

    def get(self, what: str, job: str, start: float) -> dict[str, Any] | None:
        """Read a message; None if there is none, it is unreadable, or a trigger put long before its slot.

        `what`: TRIGGER, TURN or VERDICT; `start`: begin of the look it is about, Unix time. Raises UnsafePlace
        if other users could have written it.
        """
        try:
            path = f"{self._store.path}/{message_key(what, job, start)}"
            found = parsed(objects.get(self._store, path, self.most_bytes, ours=True))
            if what == TRIGGER and self._is_early(path, start):
                return None
        except (FileNotFoundError, BadData, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _is_early(self, path: str, start: float) -> bool:
        """Tell whether a trigger came long before its slot; in a folder whose clock is behind, by this host's clock."""
        early_s = start - objects.put_s(self._store, path)
        if not early_s > _EARLY_S or not self._store.local:
            return early_s > _EARLY_S
        return early_s - (time.time() - objects.clock(self._store)) > _EARLY_S

    def windows(self, job: str, start: float) -> Sources:
        """List the windows of a job that began in the second `start` (Unix time).

        Those that other users could have written are left out, with a note.
        """
        place = f"/{moment(job, start)}"
        below = replace(self._store, path=self._store.path + place, shown=self._store.shown + place)
        strange = self._strange(below.path)
        chosen = []
        for each in () if strange else objects.listing(below).objects:
            why = self._strange(each.path)
            strange = strange or why
            if not why:
                chosen.append(Source(self.uri, each.path, each.key.hosts, each.key.host))
        text = f"left out, as others could have written it: {clean(strange, 300)}"
        return Sources(tuple(chosen), (Note(NoteCode.OBJECTS_LEFT_OUT, text),) if strange else ())

    def _strange(self, path: str) -> str:
        """Explain why other users could have written this object; '' where they could not, or it is missing."""
        try:
            return objects.not_ours(self._store, path)
        except FileNotFoundError:
            return ""

    @property
    def _store(self) -> Store:
        return open_store(self.uri)
