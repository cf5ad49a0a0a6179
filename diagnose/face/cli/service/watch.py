"""`rankscope watch`: the service of a host, run in the foreground."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rankscope.diagnose.nvsentinel.queue import NvSentinel
from rankscope.diagnose.nvsentinel.send import check_asked
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.hosts.others import Others
from rankscope.diagnose.service.ledger.book import Book
from rankscope.diagnose.service.ledger.store import Store
from rankscope.diagnose.service.limits import WINDOWS_PER_HOUR, NotNow, is_passing
from rankscope.diagnose.service.looks.trial import Trial
from rankscope.diagnose.service.place import WatchPlace
from rankscope.diagnose.service.service import Service, WatchOptions
from rankscope.diagnose.service.sick import Sick
from rankscope.diagnose.service.signals import heard
from rankscope.diagnose.service.swept import Swept
from rankscope.diagnose.service.tell.hooks import Hooks
from rankscope.diagnose.service.tell.lines import Lines
from rankscope.diagnose.service.tell.otlp import Otlp
from rankscope.diagnose.service.tell.otlp import check as check_otlp
from rankscope.diagnose.service.tell.serve import LOOPBACK, MetricsPort, PortTaken, shown
from rankscope.diagnose.service.tell.sweep_text import sweep_metrics
from rankscope.diagnose.severity import OK
from rankscope.diagnose.sweep.output import write_atomically
from rankscope.diagnose.text import clean
from rankscope.observer.apart.presence import present
from rankscope.observer.watch import pulse
from rankscope.observer.watch.tier0 import Tier0
from rankscope.probes.base.errors import EXIT_HEALTHY, NeedsRoot, RankscopeError, UsageError
from rankscope.probes.bpf import warden
from rankscope.probes.host import kmsg
from rankscope.probes.host.kmsg import KernelMessage

_STDOUT, _STDERR = Lines(), Lines()
_GUARD_STARTS_S = 5.0
_TOLD_HOOKS = (
    "alarm",
    "hardware",
    "verdict",
    "over",
)  # kinds for which the hook is called, unless the state is ok (except "over")


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Where metrics are answered: a port (None: nowhere) of an IP address; `swept`: a sweep's textfile, answered too."""

    port: int | None = None
    address: str = LOOPBACK
    swept: Path | None = None

    def check(self) -> None:
        """Raise UsageError for what is no IP address, and for an address or a file without a port."""
        try:
            shown(self.address)
        except ValueError:
            raise UsageError(f"--metrics-address {self.address}: this is no IP address") from None
        if self.port is None and (self.address != LOOPBACK or self.swept is not None):
            raise UsageError("--metrics-address and --sweep-metrics need --metrics-port")


def run(
    *, state: Path, history: Path, metrics: Path | None, scrapes: Scrapes, sweep: Path, hook: str, window_s: float | None,
    routine: bool, as_json: bool, out: str | None = None, spool: Path | None = None,
    per_hour: int = WINDOWS_PER_HOUR, otlp: str = "", nvsentinel: Path | None = None, remediate: bool = False,
) -> int:  # fmt: skip
    """Watch until SIGTERM or SIGINT, and return exit code 0.

    Raises OverBudget if the service itself takes too much, NotNow if the host has no room for it.
    """
    scrapes.check()
    if os.geteuid() != 0:
        raise NeedsRoot("watching other users' processes needs root")
    place = WatchPlace(state)
    others = _others(out, spool) if out else None
    if otlp:
        check_otlp()
    check_asked(nvsentinel, remediate)
    with place.held(), _for_now(), present(_complain) as observers:
        for one in observers:
            _complain(f"another observer runs on this host, and also slows down the jobs: {one.text()}")
        if not _is_guarded():
            _complain(
                "no guard runs on this host: files that several users map get no probes, and calls into them are not timed "
                "(rankscope-guard.service, or the container `guard` of watch-daemonset.yaml)"
            )
        sentinel = NvSentinel(nvsentinel, remediate) if nvsentinel is not None else None
        speaker = _Speaker(place, Hooks(hook, place.owed), as_json, sentinel)
        with contextlib.closing(speaker), _kernel_log() as logged, _port(scrapes) as scraped, heard() as wait:
            Service(
                Tier0(pulse.load()),
                place.box,
                WatchOptions(history, metrics, routine, window_s, per_hour),
                speaker.say,
                _complain,
                write_atomically,
                place.asked,
                logged,
                Swept(sweep).turned,
                Sick().turned,
                scraped,
                others,
                Otlp(otlp, socket.gethostname()) if otlp else None,
                speaker.tend,
                Trial(),
                Book(Store(place.ledger, socket.gethostname()), time.monotonic()),
            ).run(wait)
    return EXIT_HEALTHY


def guard() -> NoReturn:
    """Guard this host while others attach probes (probes/bpf/warden.py), with few rights.

    Never returns.
    """
    if os.geteuid() != 0:
        raise NeedsRoot("guarding a host needs root")
    warden.guard_host()


def _is_guarded() -> bool:
    """Whether a user who blocks forks while a probe is attached can be cut off.

    Waits for a starting guard.
    """
    until_s = time.monotonic() + _GUARD_STARTS_S
    while not (found := warden.able() or warden.guarded()) and time.monotonic() < until_s:
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def _for_now() -> Iterator[None]:
    """Convert a temporary lack of resources to NotNow, whose exit code lets systemd restart the
    service."""
    try:
        yield
    except (OSError, MemoryError, RankscopeError) as error:
        if not is_passing(error):
            raise
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "not enough memory"
        raise NotNow(f"there is no room for the service: {why}") from error


def _others(out: str, spool: Path | None) -> Others:
    """Set up the connection to other hosts through a store.

    Raises UsageError, OutputFailed if unusable.
    """
    # Imported here, as bucket clients are only needed with a store.
    from rankscope.observer.window.store.place import is_uri, shown_of
    from rankscope.observer.window.store.spool import DEFAULT_FOLDER, Spool

    uri = out if is_uri(out) else Path(out).absolute().as_uri()
    shown_of(uri)
    Spool(spool or DEFAULT_FOLDER, uri).prepare()
    return Others(uri, spool or DEFAULT_FOLDER)


@contextlib.contextmanager
def _kernel_log() -> Iterator[Callable[[], Sequence[KernelMessage]]]:
    """Yield a function that returns new kernel log messages.

    Without access it returns none, and a warning is printed.
    """
    with contextlib.ExitStack() as held:
        logged: Callable[[], Sequence[KernelMessage]] = tuple
        try:
            logged = held.enter_context(kmsg.following())
        except OSError as error:
            _complain(f"the kernel's log is not heard: {error.strerror}")
        yield logged


@contextlib.contextmanager
def _port(scrapes: Scrapes) -> Iterator[Callable[[Callable[[], str]], None] | None]:
    """Yield the function that answers scrapes, or None.

    None if no port is wanted, or if it is taken, which is reported.
    """
    try:
        port = MetricsPort(scrapes.port, scrapes.address) if scrapes.port is not None else None
    except PortTaken as error:
        _complain(f"no metrics: {error}. {error.help}")
        port = None
    if port is None:
        yield None
        return
    _complain(f"metrics on {port.url}")
    swept = scrapes.swept
    try:
        yield port.answer if swept is None else lambda text: port.answer(lambda: text() + sweep_metrics(swept))
    finally:
        port.close()


class _Speaker:
    """Distributes events: a line on stdout (the journal), the log, the hook, NVSentinel."""

    def __init__(self, place: WatchPlace, hooks: Hooks, as_json: bool, sentinel: NvSentinel | None = None) -> None:
        self._place, self._hooks, self._as_json, self._sentinel = place, hooks, as_json, sentinel
        self._host = socket.gethostname()
        self._log_works = True

    def say(self, event: Event) -> None:
        """Write an event to stdout and log; call hook and NVSentinel if it matters and is about this host.

        Failures are reported, and never raised.
        """
        content = event.as_json(self._host)
        try:
            missed = _STDOUT.write(sys.stdout, json.dumps(content, ensure_ascii=False) if self._as_json else event.line)
            self._complain(f"{missed} lines before this one were not read; the log has them" if missed else "")
        except OSError:  # stdout is closed: use the log and the hook only
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for good
        try:
            self._place.log(content)
            self._log_works = True
        except (OSError, ValueError, RankscopeError) as error:  # ValueError: NaN or infinity
            if self._log_works:
                _complain(f"the log cannot be written: {error}")
            self._log_works = False
        if event.state == OK:
            self._hooks.over(content)
        # Another host's verdict goes to that host's hook, and to ours if it is about this host.
        here = not event.details.get("judged_by") or content.get("drain_host") == self._host
        if here and event.kind in _TOLD_HOOKS and (event.state != OK or event.kind == "over"):
            self._complain(self._hooks.tell(content, event.state, event.user))
        # Repaired hardware as well: a condition that NVSentinel set would stay.
        told = event.kind in _TOLD_HOOKS and (event.state != OK or event.kind in ("over", "hardware"))
        if self._sentinel is not None and here and told:
            self._complain(self._sentinel.tell(content, event.state))

    def tend(self) -> None:
        """Start waiting hooks; called once per round."""
        self._complain(self._hooks.tend())
        if self._sentinel is not None:
            self._complain(self._sentinel.tend())

    def close(self) -> None:
        """End the hooks; no more events will come."""
        self._complain(self._hooks.close())
        if self._sentinel is not None:
            self._complain(self._sentinel.close())

    @staticmethod
    def _complain(note: str) -> None:
        """Report a note, unless it is ''."""
        if note:
            _complain(note)


def _complain(text: str) -> None:
    """Write a message to stderr without waiting for a reader that has stopped."""
    _STDERR.write(sys.stderr, f"rankscope: {clean(text, 300)}")
