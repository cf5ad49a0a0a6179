"""Decide whether a port without a link was switched off or its interface moved away, which is no fault.

InfiniBand reports it itself (phys_state Disabled). For RoCE and Ethernet the interface decides:
mlx5, bnxt_re and others call a RoCE port Disabled whenever its interface has no carrier, be it
switched off (as after its return from a pod) or the cable pulled.

In: /sys/class/net, which shows the interfaces of this network namespace alone, while InfiniBand
devices are seen from all of them; an interface's device is found by its `device` link. Names in
gid_attrs/ndevs are not used: they may be those of another namespace.
"""

from __future__ import annotations

import os
import re

from rankscope.probes.host.procfs import names_in, read_file
from rankscope.probes.ports.model import INFINIBAND

IFF_UP = 1
DISABLED = "Disabled"
# Name of an interface that represents a virtual function in the host: pf0vf3, c1pf0sf88.
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d")
_MOST = 64  # interfaces of one device


def switched_off(folder: str, port: int, kind: str, physical: str) -> bool:
    """Tell whether a port without a link was switched off, or its interface moved to another namespace.

    `folder` holds its files; `port`: its number, 0 for an Ethernet interface; `kind`: INFINIBAND, ROCE
    or ETHERNET; `physical`: phys_state.
    """
    if kind == INFINIBAND:
        return physical == DISABLED
    return not (runs_here(folder, port) if port else runs(folder))


def runs_here(folder: str, port: int) -> bool:
    """Tell whether an interface of a RoCE port is in this network namespace, and switched on.

    `folder`: the port's, /sys/class/infiniband/DEVICE/ports/N.
    """
    return any(runs(interface) for interface in _interfaces(folder, port))


def runs(interface: str) -> bool:
    """Tell whether an interface is switched on, and so is the bond that it is a member of, if any.

    `interface`: its folder. A port of a bond follows the bond.
    """
    flags = _text(f"{interface}/flags")
    if flags:
        bonded = bool(_names(f"{interface}/master/bonding"))
        return _is_up(flags) and (not bonded or _is_up(_text(f"{interface}/master/flags")))
    return _text(f"{interface}/carrier") != ""  # EINVAL where it is off


def _interfaces(folder: str, port: int) -> list[str]:
    """List the interface folders, /sys/class/net/NAME, of port number `port` of an InfiniBand or RoCE device.

    `folder`: the port's. Where a function has several ports, or interfaces, dev_port maps one to the
    other. Where it has one of each dev_port is ignored: older bnxt_en counts the ports of the card there.
    """
    device = os.path.realpath(f"{folder}/../../device")
    classes = f"{folder.partition('/sys/class/')[0]}/sys/class/net"
    if os.path.isdir(f"{device}/net"):  # noqa: PTH112
        names = _names(f"{device}/net")
    else:
        names = [name for name in _names(classes) if os.path.realpath(f"{classes}/{name}/device") == device]
    found = [f"{classes}/{name}" for name in names[:_MOST]]
    found = [one for one in found if not _REPRESENTOR.match(_text(f"{one}/phys_port_name"))]
    if len(found) == len(_names(f"{folder}/..")) == 1:
        return found
    return [one for one in found if (_text(f"{one}/dev_port") or "0") == f"{port - 1}"]


def _is_up(flags: str) -> bool:
    """Tell whether an interface's flags ('0x1003') say that it is switched on; False where they are unusable."""
    try:
        return bool(int(flags, 16) & IFF_UP)
    except ValueError:
        return False


def _names(folder: str) -> list[str]:
    """List a folder, sorted; empty where it cannot be listed."""
    try:
        return names_in(folder)
    except PermissionError:
        return []


def _text(path: str) -> str:
    """Read a file, stripped; '' where it cannot be read."""
    try:
        return read_file(path, 256).decode("ascii", "replace").strip()
    except OSError:
        return ""
