"""Ports that earlier sweeps saw active and that the host does not list any more, and what the PCI bus says of their cards.

That a port is gone accuses nobody by itself: an operator removed it, a cloud detached it, a driver is loaded anew, a pod or a virtual
machine has it. So virtual and sub-functions, USB and what else is no PCI function are not remembered; one that a virtual machine was
given, or whose card goes on in another namespace, is not missed; one that is missed is so for a day, then it was meant. A fault is only
what the hardware shows: a card that the bus lists and that does not answer, for longer than its firmware takes to begin anew.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.readings.hanging import awake_s
from rankscope.diagnose.sweep.readings.trees import names
from rankscope.probes.pci.cards import driver_of, is_given_away, is_mute
from rankscope.probes.pci.devices import is_address, is_part

MISSED_S, DEAD_S = 86400.0, 120.0
_SEEN = "seen "


@dataclass(frozen=True, slots=True)
class Missing:
    """A port by its name. `why` says what became of its card; `dead`: it has not answered for a while."""

    name: str
    why: str
    dead: bool


def function_of(context: Context, *device: str) -> str:
    """PCI address of what a `device` link leads to; '' where that is no whole function of a card."""
    link = context.path(*device)
    if is_part(str(link)):
        return ""
    parts = os.path.realpath(link).split("/")
    # virtio has a device of its own below the function
    return next((part for part in reversed(parts[-2:]) if is_address(part)), "")


def remember(context: Context, name: str, function: str) -> None:
    """That a port is active."""
    if function:
        context.keep(_SEEN + name, function)


def another_card(context: Context, name: str, function: str) -> bool:
    """Whether an earlier sweep saw another card under this name: a driver that is loaded anew gives names in the order that it likes."""
    seen = (context.recall(_SEEN + name) or "").partition(" ")[0]
    return is_address(seen) and function not in ("", seen)


def missing(context: Context, here: Collection[str], functions: Collection[str]) -> Iterator[Missing]:
    """Those that are missed. `here`: the ports that there are, by name; `functions`: where they are (a port that has another name now)."""
    for check, key in sorted(context.earlier.words):
        name = key.removeprefix(_SEEN)
        if check != context.id or name == key or name in here:
            continue
        function, _, gone = (context.recall(key) or "").partition(" ")
        boot, _, since = gone.rpartition(" ")
        missed_s = awake_s(context) - _number(since) if gone and boot == (context.boot or "-") else 0.0
        known = is_address(function) and function not in functions
        found = _card(context, name, function, missed_s) if known and missed_s <= MISSED_S else None
        if found is None:
            continue
        context.keep(key, f"{function} {context.boot or '-'} {awake_s(context) - missed_s:.0f}")
        yield found


def _card(context: Context, name: str, function: str, missed_s: float) -> Missing | None:
    """What became of a card; None where its port is not missed."""
    card = context.path("sys/bus/pci/devices", function)
    if not card.exists():
        return Missing(name, f"its card {function} has left the PCI bus", False)
    if is_given_away(context.root, function):
        return None
    driver = driver_of(context.root, function)
    if is_mute(context.root, function):
        return Missing(name, f"its card {function} does not answer on the PCI bus", missed_s >= DEAD_S)
    if names(context, "sys/bus/pci/devices", function, "infiniband"):
        return None  # its interface is in the namespace of a pod
    return Missing(name, f"its card {function} is there, {f'driver {driver}' if driver else 'without a driver'}", False)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
