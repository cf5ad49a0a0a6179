"""Decide what in a store is old, and whether the clock can be trusted. Pure.

The windows of a job at one time are removed together: they are as old as the youngest of their
objects. An object is as young as its name says, or as its arrival, if that was later: a host may
send late, or its clock be behind. A name with a future time means nothing.

A clock that is years ahead makes everything old. So nothing is old where the store's clock differs
from this host's, where nothing at all would be left, or where a year without a window lies between
what would go and what would stay.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.observer.window.store.keys import folder_of_moment
from rankscope.observer.window.store.objects import Listing
from rankscope.probes.base.clocks import NEVER_SO_LONG_S
from rankscope.probes.base.errors import EXIT_UNKNOWN, RankscopeError

CLOCKS_APART_S = (
    # correct clocks differ by less than a second, and stores refuse clients a quarter of an hour
    # off
    3600.0
)


class ClockInDoubt(RankscopeError):
    """Whether things are old depends on a clock that may be wrong."""

    help = (
        "Set this host's clock (`date`, `timedatectl`); if it is right and the windows should go, add --clock-is-right."
    )
    exit_code = EXIT_UNKNOWN


@dataclass(frozen=True, slots=True)
class Clocks:
    """Unix time of this host and of the store; NaN: not reported."""

    host_s: float
    store_s: float = math.nan

    @property
    def earlier_s(self) -> float:
        """The earlier time of the two; this host's where the store's is unknown."""
        return self.host_s if math.isnan(self.store_s) else min(self.host_s, self.store_s)


@dataclass(frozen=True, slots=True)
class Old:
    """Removable objects: sizes in bytes by path; `ahead`: number of remaining objects with a future
    name.
    """

    sizes_bytes: dict[str, int]
    ahead: int


def old_in(there: Listing, older_than_s: float, clocks: Clocks, *, clock_is_right: bool = False) -> Old:
    """Find the windows and messages whose times and arrivals are all more than `older_than_s` ago
    by both clocks.

    Raises ClockInDoubt.
    """
    now_s = clocks.earlier_s
    moments: dict[str, float] = {}
    folders = [folder_of_moment(found.path) for found in there.objects]
    for found, folder in zip(there.objects, folders, strict=True):
        moments[folder] = max(moments.get(folder, -math.inf), _since(found.key.start, found.put_s, now_s))
    old = {folder for folder, since_s in moments.items() if since_s <= now_s - older_than_s}
    if old and not clock_is_right:
        _doubt((moments[folder] for folder in old), (at for folder, at in moments.items() if folder not in old), clocks)
    sizes = {
        found.path: found.size_bytes for found, folder in zip(there.objects, folders, strict=True) if folder in old
    }
    sizes |= {each.path: 0 for each in there.told if _since(each.start, each.put_s, now_s) <= now_s - older_than_s}
    return Old(sizes, sum(found.key.start > now_s and found.path not in sizes for found in there.objects))


def _since(start_s: float, put_s: float, now_s: float) -> float:
    """Return a time at which something certainly existed; the arrival is needed where its name is
    in the future.
    """
    if math.isnan(put_s):
        return start_s
    return max(start_s, put_s) if start_s <= now_s else put_s


def _doubt(going: Iterable[float], staying: Iterable[float], clocks: Clocks) -> None:
    """Raise ClockInDoubt where the clocks differ, nothing would stay, or a year lies between what goes and what stays.

    `going`, `staying`: the times (Unix) of the windows to remove and of the others; at least one
    goes.
    """
    last_s, next_s = max(going), min(staying, default=math.inf)
    says = f"this host's clock says {_day(clocks.host_s)}"
    if abs(clocks.host_s - clocks.store_s) > CLOCKS_APART_S:
        raise ClockInDoubt(f"nothing was removed: {says}, the store's says {_day(clocks.store_s)}")
    if math.isinf(next_s):
        raise ClockInDoubt(f"nothing was removed: no window would be left; the last is of {_day(last_s)}, {says}")
    if next_s - last_s > NEVER_SO_LONG_S:
        raise ClockInDoubt(
            f"nothing was removed: between what would go and what would stay lies no window from {_day(last_s)} to {_day(next_s)}; {says}"
        )


def _day(unix_s: float) -> str:
    """Format a time for people; clocks and names may say any year."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.0f}"
