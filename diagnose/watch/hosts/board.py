"""What hosts of a job leave each other in a store, and the windows that lie there. Each call may take as long as the store does.

What lies there makes services look, judge and drain. So of a folder only that is believed which nobody could have written but root.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankscope.diagnose.fleet.sources import Source, Sources
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.keys import message_key, moment
from rankscope.observer.window.store.place import Store, open_store
from rankscope.probes.errors import BadData

TRIGGER, TURN, VERDICT = "trigger", "turn", "verdict"
_MOST_DIGITS = 20  # with its sign, of 64 bits
# A trigger is put some seconds before its slot. One that came so long before is of a host whose clock was ahead, and of a trouble that is
# over. Buckets refuse whose clock is as far off from theirs; the server of a folder takes all, whatever its own clock says.
_EARLY_S = 900.0


@dataclass(frozen=True, slots=True)
class Board:
    """One store. StoreFailed, UsageError."""

    uri: str
    most_bytes: int = 4 << 20  # a verdict with the stacks of ten thousand ranks

    def put(self, what: str, job: str, start: float, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """Leave it, unless there is one already; what is there now. UnsafePlace, as of `get`."""
        objects.put_new(self._store, message_key(what, job, start), json.dumps(content, ensure_ascii=False).encode())
        return self.get(what, job, start)

    def get(self, what: str, job: str, start: float) -> dict[str, Any] | None:
        """What was left; None where there is nothing that can be read, or an old trigger. UnsafePlace where others could have left it."""
        try:
            path = f"{self._store.path}/{message_key(what, job, start)}"
            found = _parsed(objects.get(self._store, path, self.most_bytes, ours=True))
            if what == TRIGGER and self._is_early(path, start):
                return None
        except (FileNotFoundError, BadData, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _is_early(self, path: str, start: float) -> bool:
        """Whether it came long before its slot; by this host's clock where the store's is behind."""
        early_s = start - objects.put_s(self._store, path)
        if not early_s > _EARLY_S or not self._store.local:
            return early_s > _EARLY_S
        return early_s - (time.time() - objects.clock(self._store)) > _EARLY_S

    def windows(self, job: str, start: float) -> Sources:
        """The windows of one job that began in this second; of those that others could have written a note."""
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
        """Why others could have written what lies there; '' where they could not, or nothing does."""
        try:
            return objects.not_ours(self._store, path)
        except FileNotFoundError:
            return ""

    @property
    def _store(self) -> Store:
        return open_store(self.uri)


def _parsed(data: bytes) -> Any:
    """JSON whose numbers can be told again, as JSON and as floats. ValueError, RecursionError."""
    return json.loads(data, parse_constant=_finite, parse_float=_finite, parse_int=_integer)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("no number")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number that counts nothing")
    return int(text)
