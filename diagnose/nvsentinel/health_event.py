"""A health event of NVSentinel, and the names that findings and suspects have in it. Pure."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from datetime import datetime, timezone

from rankscope.diagnose import xids
from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.text import clean

AGENT = "rankscope"
VERSION = 1
# Names of RecommendedAction that every version of the interface has.
NONE, RESET, SUPPORT, REBOOT = "NONE", "COMPONENT_RESET", "CONTACT_SUPPORT", "RESTART_BM"

# Component of a sweep check (before the point) or of a suspect: class as NVSentinel's own monitors write it.
_CLASSES = {
    "gpu": "GPU", "nvlink": "GPU", "ib": "NIC", "nic": "NIC", "net": "NIC", "network": "Network", "pcie": "PCIe", "cpu": "CPU",
    "mem": "Memory", "memory": "Memory", "disk": "Storage", "fs": "Storage", "storage": "Storage", "os": "OS", "driver": "OS",
}  # fmt: skip
_ENTITIES = {"GPU": "GPU", "NIC": "NIC", "Storage": "Storage"}
# What to do where a device is broken; all other fatal events ask for support.
_ACTIONS = {
    "gpu.lost": REBOOT, "gpu.ecc": RESET, "nvlink.down": RESET,
    "gpu/lost": REBOOT, "gpu/ecc-errors": RESET, "nvlink/down": RESET, "memory/ecc-errors": SUPPORT,
}  # fmt: skip
_FALLEN_OFF_BUS = 79
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?")
_GPU = re.compile(r"gpu ?(\d{1,5})")


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One health event.

    `check`: PascalCase; `entities`: (type, value) pairs; `at`: Unix time; `action`: a name of RecommendedAction.
    """

    node: str
    component: str
    check: str
    message: str
    at: float
    fatal: bool = False
    healthy: bool = False
    action: str = NONE
    codes: tuple[str, ...] = ()
    entities: tuple[tuple[str, str], ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)


def node_name() -> str:
    """Return this node's name in Kubernetes: NODE_NAME where a pod's spec sets it, else the host's."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


def component_class(component: str) -> str:
    """Class of a sweep check's family or a suspect's component, e.g. 'GPU'."""
    return _CLASSES.get(component, clean(component, 40).capitalize() or "Unknown")


def check_name(identifier: str) -> str:
    """Name of a check or cause, e.g. 'RankscopeGpuXid' of 'gpu.xid', as a condition of a node may be called."""
    words = re.findall(r"[A-Za-z0-9]+", clean(identifier, 100))
    return "Rankscope" + "".join(word[0].upper() + word[1:] for word in words)


def entities_of(component: str, instance: str) -> tuple[tuple[str, str], ...]:
    """Entities of an instance as (type, value): GPUs by index, others by PCI address, ports by device and number.

    `component`: a check's family or a suspect's component. () for no instance.
    """
    instance = clean(instance, 200)
    if not instance:
        return ()
    if found := _PCI.fullmatch(instance):
        return (("PCI", found[0]),)
    kind = component_class(component)
    if kind == "GPU" and (numbered := _GPU.match(instance)):
        return (("GPU", numbered[1]),)
    device, slash, port = instance.partition("/")
    if kind == "NIC" and slash and port.isdecimal():
        return (("NIC", device), ("NICPort", port))
    return ((_ENTITIES.get(kind, kind), instance),)


def action_of(identifier: str, state: str, number: int | None = None) -> str:
    """Recommended action of a finding or cause; NONE unless critical. `number`: its Xid, if any."""
    if state != CRITICAL:
        return NONE
    if number is not None:
        if number == _FALLEN_OFF_BUS:
            return REBOOT
        return RESET if "reset the GPU" in xids.meaning(number)[2] else SUPPORT
    return _ACTIONS.get(identifier, SUPPORT)


def unix_of(iso: object) -> float:
    """Unix time of an ISO time in UTC; 0 if it is none."""
    try:
        return datetime.fromisoformat(str(iso).replace("Z", "+00:00")).astimezone(timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return 0.0
