"""Ports seen active by earlier sweeps and no longer listed, with the state of their cards on the PCI bus.

A missing port proves no fault: an operator removed it, a cloud detached it, a driver is reloading, a pod or a virtual
machine has it. So virtual and sub-functions, USB and other non-PCI devices are not remembered; a port given to a
virtual machine, or whose card works in another namespace, is not missing; and a missing one is reported for a day,
after which it counts as intended. Only hardware shows a fault: a card that the bus lists and that does not answer,
for longer than its firmware takes to restart.
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
    """A missing port. `why`: state of its card; `dead`: the card has not answered for DEAD_S."""

    name: str
    why: str
    dead: bool


def function_of(context: Context, *device: str) -> str:
    """PCI address of the device that a link in /sys leads to; `device`: path of the link.

    '' if it is no physical PCI function.
    """
    link = context.path(*device)
    if is_part(str(link)):
        return ""
    parts = os.path.realpath(link).split("/")
    # virtio has its own device below the function
    return next((part for part in reversed(parts[-2:]) if is_address(part)), "")


def remember(context: Context, name: str, function: str) -> None:
    """Store that a port is active, with its card's address `function`; nothing if that is ''."""
    if function:
        context.keep(_SEEN + name, function)


def another_card(context: Context, name: str, function: str) -> bool:
    """Whether an earlier sweep saw another card under this name, as reloaded drivers may swap names."""
    seen = (context.recall(_SEEN + name) or "").partition(" ")[0]
    return is_address(seen) and function not in ("", seen)


def missing(context: Context, here: Collection[str], functions: Collection[str]) -> Iterator[Missing]:
    """Yield the ports that earlier sweeps of this check saw, and that are gone for at most a day.

    `here`: names of present ports; `functions`: their addresses, in case of renaming.
    """
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
    """Describe the state of a missing port's card; None if the port is not considered missing.

    `function`: the card's PCI address; `missed_s`: seconds since a sweep first missed the port.
    """
    card = context.path("sys/bus/pci/devices", function)
    if not card.exists():
        return Missing(name, f"its card {function} has left the PCI bus", False)
    if is_given_away(context.root, function):
        return None
    driver = driver_of(context.root, function)
    if is_mute(context.root, function):
        return Missing(name, f"its card {function} does not answer on the PCI bus", missed_s >= DEAD_S)
    if names(context, "sys/bus/pci/devices", function, "infiniband"):
        return None  # its interface is in a pod's namespace
    return Missing(name, f"its card {function} is there, {f'driver {driver}' if driver else 'without a driver'}", False)


def _number(text: str) -> float:
    """Parse a stored time; 0 for anything else."""
    try:
        return float(text)
    except ValueError:
        return 0.0
