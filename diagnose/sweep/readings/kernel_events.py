"""Meaning of kernel log lines: one row per kind of event, with severity and action.

To add an event, add a row. Xids are read by probes/gpu/xid.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.readings.attached import may_be_attached
from rankscope.diagnose.sweep.readings.hanging import awake_s
from rankscope.probes.host.kmsg import KernelMessage, read_kmsg

IO, MCE, OOM, READONLY, OTHER = "io", "mce", "oom", "readonly", "other"
MLX5_HEALTH = "mlx5-health"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of event. Its expression matches from the beginning of a line; the first group found is the instance."""

    name: str
    family: str
    state: str
    expression: re.Pattern[str]
    action: str


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the kernel's log that matches a pattern. `time_s`: seconds since boot."""

    name: str
    family: str
    state: str
    instance: str
    time_s: float
    text: str
    action: str


def _row(name: str, family: str, state: str, expression: str, action: str) -> Pattern:
    """Make a pattern, compiling its expression."""
    return Pattern(name, family, state, re.compile(expression), action)


_DISK = "Check the device (smartctl, nvme smart-log) and replace it if it repeats."
_STUCK = "Look at what the task waits for (its stack is in dmesg); storage or a driver hangs."
_REBOOT = "Drain the host and reboot it; report the trace to whoever owns the kernel."
# A disk of the host: unprivileged users may attach loop devices and removable media, with any
# damage on them.
_DEVICE = r"(?!(?:loop|fd|sr|zram)\d)([a-z]\S{1,31})"
_OOPS_ENDS = r"[0-9a-f]{4,16} \[#\d{1,6}\](?: [A-Z][A-Z_]*(?:\([a-z]+\))?)*$"
# Expressions match at the beginning of a line. Any user can choose a program's name (`comm`, 15
# characters), and the kernel writes lines that begin with it ("NAME[7]: segfault at …", "NAME
# invoked oom-killer: …") or contain file names. So an expression has more fixed text than a name is
# long, or matches the whole line. `critical` is only what an unprivileged user cannot make a
# healthy kernel write.
PATTERNS = (
    _row("soft-lockup", OTHER, CRITICAL, r"watchdog: BUG: soft lockup - (CPU#\d+) stuck for ", _REBOOT),
    _row("hard-lockup", OTHER, CRITICAL, r"(?:NMI )?watchdog: (?:CPU\d+: )?Watchdog detected hard LOCKUP on (cpu ?\d+)", _REBOOT),
    _row("rcu-stall", OTHER, CRITICAL, r"rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall", _REBOOT),
    _row("hung-task", OTHER, WARNING, r"INFO: task (.{1,15}):\d+ blocked for more than \d+ seconds\.?$", _STUCK),
    _row("panic", OTHER, CRITICAL, r"Kernel panic - not syncing: ", _REBOOT),
    _row("oops", OTHER, CRITICAL,
         r"BUG: unable to handle (?:page fault for address|kernel paging request|kernel NULL pointer)"
         r"|BUG: kernel NULL pointer dereference, address: |Unable to handle kernel (?:paging request|NULL pointer dereference) at "
         r"|(?:Oops: )?general protection fault, (?:probably|maybe) for (?:non-canonical )?address "
         r"|kernel BUG at [^\s:]{1,200}:\d{1,6}!$"
         rf"|(?:Oops: ){{0,2}}(?:Oops|general protection fault|invalid opcode|stack segment|divide error): {_OOPS_ENDS}"
         rf"|Internal error: Oops.{{0,80}}: {_OOPS_ENDS}", _REBOOT),
    _row("file-table-full", OTHER, WARNING, r"VFS: file-max limit \d+ reached", "Find who holds so many (lsof); raise fs.file-max."),
    _row("oom-kill", OOM, WARNING, r"(?:Out of memory|Memory cgroup out of memory): Killed process \d+ \((.{1,64}?)\)",
         "Give the job more memory, or make it use less; see who was killed."),
    _row("io-error", IO, WARNING,
         rf"(?:blk_update_request: |print_req_error: )?(?:critical medium error|I/O error|critical target error), dev {_DEVICE}, sector \d",
         _DISK),
    _row("buffer-io-error", IO, WARNING, rf"Buffer I/O error on dev(?:ice)? {_DEVICE}, logical block \d", _DISK),
    _row("nvme-timeout", IO, WARNING,
         r"nvme (nvme\d+): I/O (?:tag )?\d+ (?:\([0-9a-f:]+\) )?(?:opcode .{1,60} )?QID \d+ timeout", _DISK),
    _row("nvme-lost", IO, CRITICAL,
         r"nvme (nvme\d+): (?:Removing after probe failure|Disabling device after reset failure|Device not ready; aborting reset)", _DISK),
    _row("raid-failure", IO, CRITICAL, r"md/raid\d{0,2}:(md\S{1,30}): (?:Disk failure on |Operation continuing on )",
         "Replace the failed disk."),
    _row("fs-error", IO, CRITICAL, rf"EXT4-fs error \(device {_DEVICE}\)", "Take the file system offline and run fsck."),
    _row("fs-error", IO, CRITICAL,
         rf"XFS \({_DEVICE}\): (?:Metadata (?:corruption|CRC error) detected at |Corruption of (?:in-memory|on-disk) (?:data|metadata) "
         r"|(?:Log |Metadata )?I/O [Ee]rror .{0,120}Shutting down filesystem|[Ff]ilesystem has been shut down due to )",
         "Take the file system offline and run xfs_repair."),
    _row("remounted-readonly", READONLY, CRITICAL, rf"EXT4-fs \({_DEVICE}\): Remounting filesystem read-only$",
         "Drain the host; check the disk, then fsck and remount."),
    _row("remounted-readonly", READONLY, CRITICAL, rf"BTRFS info \(device {_DEVICE}(?: state \w{{1,16}})?\): forced readonly$",
         "Drain the host; check the disk (btrfs device stats), then remount."),
    _row("uncorrected-error", MCE, CRITICAL,
         r"(?:mce: |\{\d{1,9}\})?\[Hardware Error\]: .{0,200}(?:[Uu]ncorrected|UC, |event severity: fatal)",
         "Drain the host and have the hardware inspected."),
    _row("hardware-error", MCE, WARNING,
         r"(?:mce: |\{\d{1,9}\})?\[Hardware Error\]: (?:Machine check|CPU \d+: Machine Check|[Cc]orrected)",
         "Read the record (rasdaemon, mcelog); replace what it names if it repeats."),
    _row("mlx5-power", OTHER, WARNING, r"mlx5_core ([0-9a-f:.]{12}).{0,40}: .*Detected insufficient power on the PCIe slot",
         "Check the slot's power budget and the card's seating."),
    _row("mlx5-temperature", OTHER, WARNING, r"mlx5_core ([0-9a-f:.]{12}).{0,40}: .*Port module event\[error\].*[Hh]igh [Tt]emperature",
         "Check airflow and the transceiver."),
    _row(MLX5_HEALTH, OTHER, CRITICAL,
         r"mlx5_core ([0-9a-f:.]{12}).{0,40}: .*(?:health compromised|device's health compromised|[Ff]atal error)",
         "Drain the host; reset the NIC, inspect it if it repeats."),
    _row("nfs-timeout", OTHER, WARNING, r"nfs: server (\S{1,64}) not responding, ", "Check the file server and the way to it."),
    _row("lustre-evicted", OTHER, WARNING, r"LustreError: \d+-\d: \S{1,80}: This client was evicted by (\S{1,64})",
         "Check the file servers and the fabric."),
    _row("nccl-segfault", OTHER, WARNING, r".{1,64}\[\d+\]: segfault at [^/]* in (libnccl\.so[\w.]{0,16})\[",
         "Look at the job that crashed."),
)  # fmt: skip
_QUICK = re.compile("|".join(f"(?:{pattern.expression.pattern})" for pattern in PATTERNS))


def kernel_log(context: Context) -> tuple[KernelMessage, ...]:
    """Messages of the kernel log, read once per sweep. Raises Unreadable."""
    return context.shared.get("kmsg", lambda: _read(context))


def _read(context: Context) -> tuple[KernelMessage, ...]:
    """Read the kernel's log. Raises Unreadable, with what to do."""
    try:
        return read_kmsg(context.root)
    except PermissionError as error:
        raise Unreadable("/dev/kmsg: not permitted", "Run as root or with CAP_SYSLOG.") from error
    except OSError as error:
        raise Unreadable(
            f"/dev/kmsg: {error.strerror}", "Make /dev/kmsg visible (in a container: mount it)."
        ) from error


def events(messages: Iterable[KernelMessage]) -> tuple[Event, ...]:
    """Parse messages into events, in order, ignoring others. Never raises."""
    found = []
    for message in messages:
        if not _QUICK.match(message.text):
            continue
        for pattern in PATTERNS:
            match = pattern.expression.match(message.text)
            if match:
                instance = next((group for group in match.groups() if group), "")
                found.append(
                    Event(
                        pattern.name,
                        pattern.family,
                        pattern.state,
                        instance,
                        message.time_s,
                        message.text,
                        pattern.action,
                    )
                )
                break
    return tuple(found)


def logged_events(context: Context) -> tuple[Event, ...]:
    """Events of the kernel log, parsed once per sweep. Raises Unreadable."""
    messages = kernel_log(context)
    return context.shared.get("events", lambda: tuple(_of_this_host(context, event) for event in events(messages)))


def _of_this_host(context: Context, event: Event) -> Event:
    """Downgrade an event to a warning if this host is not the cause.

    That is so for a virtual function, which the driver reports dead whenever SR-IOV is switched off
    (the bus no longer lists it then), and for a disk that a user may have attached.
    """
    if event.name == MLX5_HEALTH:
        device = context.path("sys/bus/pci/devices", event.instance)
        ours = device.exists() and not (device / "physfn").exists()
    else:
        ours = event.family not in (IO, READONLY) or not may_be_attached(context, event.instance)
    return event if ours else replace(event, state=WARNING)


def recent(context: Context, time_s: float, hours: float) -> bool:
    """Whether a log time (awake seconds since boot) is within the last `hours`."""
    return awake_s(context) - time_s <= hours * 3600


def unix_time(context: Context, time_s: float) -> float:
    """Convert a log time (awake seconds since boot) to Unix time."""
    return context.now_s - (awake_s(context) - time_s)


def grouped(found: Sequence[Event]) -> dict[tuple[str, str], list[Event]]:
    """Group events by (name, instance), each in order."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in found:
        groups.setdefault((event.name, event.instance), []).append(event)
    return groups
