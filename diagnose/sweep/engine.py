"""Run one sweep: each check on its own thread, with a common deadline; collect findings.

A check that fails, lacks a right, gets no thread or is late yields one UNKNOWN finding and never
ends the sweep. A thread that hangs in the kernel (a dead mount) is abandoned: it is a daemon thread
and ends with the process; findings it made count. Of very many findings of a check the most severe
are used, so that no flood of warnings hides a problem.
"""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.diagnose.severity import OK, UNKNOWN, weight, worst
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Context, Earlier, NotApplicable, Shared, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.registry import Check
from rankscope.diagnose.text import clean
from rankscope.probes.base import room
from rankscope.probes.host.namespaces import host_name
from rankscope.probes.host.procfs import ROOT, read_file, reason

MAX_FINDINGS_PER_CHECK = 512
_TEXT_CAP = 400


@dataclass(frozen=True, slots=True)
class Sweep:
    """A finished sweep.

    Times are Unix seconds. `skipped`: (check, reason) where the check does not apply. `unread`:
    (check, key) of known counters that were not read; `unfinished`: checks that failed or were
    late, so that their findings may be incomplete.
    """

    host: str
    time_s: float
    uptime_s: float
    boot: str
    seconds: float
    cpu_seconds: float
    findings: tuple[Finding, ...]
    skipped: tuple[tuple[str, str], ...]
    ignored: int
    checks: int
    counters: tuple[tuple[str, str, float], ...]
    words: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Worst state of all findings."""
        return worst(finding.state for finding in self.findings)


class _Running:
    """A check on its thread.

    Only `finish` writes the public attributes, as a late thread may go on at any time.
    """

    def __init__(self, check: Check, context: Context) -> None:
        self.check, self.context = check, context
        self.findings: list[Finding] = []
        self.skipped = ""
        self.unfinished = False
        self._found: list[Finding] = []
        self._failure: list[Finding] = []
        self._absent = ""
        self._began = True
        self._thread = threading.Thread(target=self._run, name=f"check-{check.id}", daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not room.refused_a_thread(error):
                raise
            self._began = False
            self._failure = [context.unknown("", "no thread could be started for this check", action=room.THREADS_HELP)]

    def _run(self) -> None:
        """Run the check on its thread: collect its findings, or why it does not apply or failed."""
        try:
            for finding in self.check.run(self.context):
                self._found.append(finding)
                if len(self._found) >= 2 * MAX_FINDINGS_PER_CHECK:  # sorting at every finding would take too long
                    self._found = _worst(self._found)
        except NotApplicable as why:
            if not self._found:
                self._absent = str(why)
        except Exception as error:
            self._failure = [self._failed(error)]

    def _failed(self, error: Exception) -> Finding:
        """Make the UNKNOWN finding for what a check raised."""
        if isinstance(error, Unreadable):
            return self.context.unknown("", str(error), action=error.right)
        if isinstance(error, PermissionError):
            return self.context.unknown(
                str(error.filename or ""),
                f"not permitted: {reason(error)}",
                action="Run as root (CAP_DAC_READ_SEARCH).",
            )
        if isinstance(error, MemoryError):
            return self.context.unknown("", "there was not enough memory for this check", action=room.THREADS_HELP)
        why = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return self.context.unknown(
            str(getattr(error, "filename", "") or ""), f"the check failed: {why}", action="Report it with -v."
        )

    def finish(self, deadline: float, limit_s: float) -> None:
        """Wait for the check until the deadline (time.monotonic) and collect its results."""
        if self._began:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._began or not self._thread.is_alive():
            self.findings, self.skipped = [*_worst(self._found), *self._failure], self._absent
            self.unfinished = bool(self._failure)
        else:
            late = self.context.unknown(
                "", f"did not end within {limit_s:g} s", action="Look for a stuck mount or device; see fs.stuck."
            )
            # Copy, as the thread may still write. Drop its counters: growth may not have been
            # reported yet, so the next sweep has to see it.
            self.findings, self.unfinished = [*_worst(self._found.copy()), late], True
            self.context = replace(self.context, counters={}, words=self.context.words.copy(), unread=set())


def _worst(found: list[Finding]) -> list[Finding]:
    """The most severe findings, up to the limit per check, in their original order."""
    places = sorted(range(len(found)), key=lambda place: -weight(found[place].state))
    return [found[place] for place in sorted(places[:MAX_FINDINGS_PER_CHECK])]


def sweep(
    checks: Sequence[Check], config: Config, earlier: Earlier, root: Path = ROOT, now_s: float | None = None
) -> Sweep:
    """Run the checks in parallel and collect their findings. Never raises for errors of a check."""
    began, cpu_began = time.monotonic(), time.process_time()
    now = time.time() if now_s is None else now_s
    uptime, boot = _boot(root)
    shared = Shared()
    running = [
        _Running(check, Context(check.id, config.settings(check), root, now, uptime, boot, earlier, shared))
        for check in checks
    ]
    deadline = began + config.timeout_s
    for one in running:
        one.finish(deadline, config.timeout_s)
    findings, ignored = _without_quirks((finding for one in running for finding in one.findings), config)
    return Sweep(
        host=clean(host_name(root), 64),
        time_s=now,
        uptime_s=uptime,
        boot=boot,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu_began,
        findings=tuple(findings),
        skipped=tuple((one.check.id, clean(one.skipped, _TEXT_CAP)) for one in running if one.skipped),
        ignored=ignored,
        checks=len(running),
        counters=tuple((one.check.id, key, value) for one in running for key, value in one.context.counters.items()),
        words=tuple((one.check.id, key, word) for one in running for key, word in one.context.words.items()),
        unread=tuple(sorted(_unread(running, earlier))),
        unfinished=tuple(one.check.id for one in running if one.unfinished),
    )


def _unread(running: Sequence[_Running], earlier: Earlier) -> set[tuple[str, str]]:
    """(check, key) of known, valid counters not read now, for checks that ended or tried to read them."""
    contexts = {one.check.id: one.context for one in running}
    unfinished = {one.check.id for one in running if one.unfinished}
    return {
        (identifier, key)
        for (identifier, key), reading in earlier.counters.items()
        if (context := contexts.get(identifier)) is not None
        and key not in context.counters
        and (key in context.unread or identifier not in unfinished)
        and context.stays(reading, key in context.unread)
    }


def is_ignored(config: Config, identifier: str, instance: str) -> bool:
    """Whether the operator accepts findings of this instance (setting `ignore`)."""
    return any(fnmatch.fnmatchcase(instance, pattern) for pattern in config.ignored(identifier))


def _without_quirks(findings: Iterable[Finding], config: Config) -> tuple[list[Finding], int]:
    """Clean the findings' text and drop accepted instances; return the rest and how many were dropped."""
    kept, ignored = [], 0
    for finding in findings:
        if finding.state not in (OK, UNKNOWN) and is_ignored(config, finding.id, finding.instance):
            ignored += 1
            continue
        value = finding.value
        kept.append(
            replace(
                finding,
                instance=clean(finding.instance, 100),
                read=clean(finding.read, _TEXT_CAP),
                value=clean(value, 100) if isinstance(value, str) else value,
                expected=clean(finding.expected, _TEXT_CAP),
                why=clean(finding.why, _TEXT_CAP),
                action=clean(finding.action, _TEXT_CAP),
            )
        )
    return kept, ignored


def _boot(root: Path) -> tuple[float, str]:
    """Seconds since boot, and the boot's id ('' if it cannot be read)."""
    base = str(root).rstrip("/")
    try:
        uptime = float(read_file(f"{base}/proc/uptime", 256).split()[0])
    except (OSError, ValueError, IndexError):
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        boot = read_file(f"{base}/proc/sys/kernel/random/boot_id", 64).decode("ascii", "replace").strip()
    except OSError:
        boot = ""
    return uptime, boot
