"""Buffer of a window's events, with fair limits per user.

When a user's room is used up, his window ends: later events are dropped, except what had begun
before. A window with a gap would show ranks that do nothing. Others' windows go on; once all have
ended, the window ends for all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rankscope.observer.live import limits
from rankscope.observer.live.shares import Places
from rankscope.probes.base.arrays import Ints
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events

_CHECK_EVERY_S = 1.0
_CHECK_EVENTS = 1024  # in one drain: with the words of their stacks they may take 4 MB
Whose = Callable[[int], str]  # the user of a process, by pid; '' if it belongs to no rank


@dataclass(slots=True)
class Held:
    """The events of one window, stored while their users have room.

    `lost`: number of dropped events by user; '' for lack of memory, or of unknown owners.

    `ended_ns`: user -> when his window ended for lack of room (CLOCK_MONOTONIC).
    """

    users: frozenset[str]
    batches: list[Events] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    ended_ns: dict[str, int] = field(default_factory=dict)
    _count: int = 0
    _places: Places | None = None  # None while there is plenty of room
    _of_processes: Counter[int] | None = None  # None while no process can have too many
    _over_memory: bool = False  # this process uses as much memory as it may
    _next_check_s: float = 0.0

    @property
    def full(self) -> bool:
        """Tell whether the window is over: for lack of memory, or as no user has room left."""
        return self._over_memory or (bool(self.ended_ns) and self.users <= self.ended_ns.keys())

    def begin(self) -> None:
        """Begin the window: drop earlier events, except ends of processes."""
        self.batches = [batch[batch["type"] == ring.EXIT] for batch in self.batches]
        self.lost.clear()
        self.ended_ns.clear()
        self._count, self._places, self._of_processes, self._over_memory = (
            sum(map(len, self.batches)),
            None,
            None,
            False,
        )

    def take(self, events: Events, whose: Whose) -> Events:
        """Store the events there is room for, and return them. Ends of processes are always stored."""
        now_s = time.monotonic()
        if not self._over_memory and (len(events) > _CHECK_EVENTS or now_s >= self._next_check_s):
            self._next_check_s = now_s + _CHECK_EVERY_S
            self._over_memory = limits.resident_bytes() >= limits.RESIDENT_BYTES
        kept = events
        if self._over_memory:
            kept = events[events["type"] == ring.EXIT]
            self.lost[""] += len(events) - len(kept)
        elif (
            self.ended_ns
            or self._places is not None
            or self._count + len(events) > Places(limits.EVENTS, self.users).freely
        ):
            kept = self._of_each(events, whose)
        self._count += len(kept)
        self.batches.append(kept)
        if self._count > limits.PROCESS_EVENTS:
            self._check_processes(kept, whose)
        return kept

    def _check_processes(self, events: Events, whose: Whose) -> None:
        """End the window of a user whose process has more events than rows can be made of."""
        fresh = [events] if self._of_processes is not None else self.batches
        self._of_processes = self._of_processes or Counter()
        for batch in fresh:
            tgids, counts = np.unique(batch["tgid"], return_counts=True)
            self._of_processes.update(dict(zip(tgids.tolist(), counts.tolist(), strict=True)))
        for pid in np.unique(events["tgid"]).tolist():
            if self._of_processes[pid] > limits.PROCESS_EVENTS and (user := whose(pid)) not in self.ended_ns:
                self.ended_ns[user] = int((events["ts_ns"] + events["dur_ns"]).max())
                self._places = self._places or self._counted(whose)

    def _counted(self, whose: Whose) -> Places:
        """Return the room for events that the stored ones leave to each user."""
        places = Places(limits.EVENTS, self.users)
        for batch in self.batches:
            for user, mine in _by_user(batch, whose).items():
                places.take(user, len(mine))
        return places

    def _of_each(self, events: Events, whose: Whose) -> Events:
        """Select the events that each user has room for; where a user's room is used up, end that user's window."""
        self._places = self._places or self._counted(whose)
        wanted = events["type"] == ring.EXIT
        for user, mine in _by_user(events, whose).items():
            if user not in self.ended_ns:
                room = max(self._places.left(user), 0)
                wanted[mine[:room]] = True
                over = events[mine[room:]]
                over = over[over["type"] != ring.EXIT]
                if len(over):
                    self.ended_ns[user] = int((over["ts_ns"] + over["dur_ns"]).min())
            if user in self.ended_ns:  # absences and calls are reported when they end
                wanted[mine[events["ts_ns"][mine] < self.ended_ns[user]]] = True
            fit = int(wanted[mine].sum())
            self._places.take(user, fit)
            if fit < len(mine):
                self.lost[user] += len(mine) - fit
        kept: Events = events[wanted]
        return kept


def _by_user(events: Events, whose: Whose) -> dict[str, Ints]:
    """Return the positions of each user's events, in order."""
    tgids, which = np.unique(events["tgid"], return_inverse=True)
    users = [whose(tgid) for tgid in tgids.tolist()]
    numbers = {user: number for number, user in enumerate(dict.fromkeys(users))}
    of_events = np.array([numbers[user] for user in users], dtype=np.int64)[which.reshape(-1)]
    return {user: np.flatnonzero(of_events == number) for user, number in numbers.items()}
