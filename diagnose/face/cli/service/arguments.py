"""Options of `watch`, `top`, `trigger`, `blackbox`, `ledger` and `mcp`, separate so that `--help` does not import
the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

_FOLDER = Path("/var/lib/rankscope/watch")
_HISTORY = Path("/var/lib/rankscope/history")
_SWEEP = Path("/var/lib/rankscope/sweep")
State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The service's own folder: lock, log, ledgers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Job = Annotated[Optional[str], typer.Option("--job", metavar="JOB", help="This job alone.")]  # noqa: UP045
HistoryDir = Annotated[Path, typer.Option("--history", metavar="DIR", help="Where windows are kept, to compare with.")]
Metrics = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--metrics", metavar="FILE", help="Write metrics for node_exporter's textfile collector."),
]
MetricsPort = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Answer GET /metrics on this port; 0: any.",
    ),
]
MetricsAddress = Annotated[
    str,
    typer.Option(
        "--metrics-address",
        metavar="ADDRESS",
        help="The IP address of that port. Any but a loopback: whoever reaches it reads names of jobs.",
    ),
]
SweepMetrics = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--sweep-metrics", metavar="FILE", help="The file of `sweep --textfile`: answered there too."),
]
Sweep = Annotated[
    Path,
    typer.Option("--sweep", metavar="DIR", help="The state of `rankscope sweep`: what it finds critical is an alarm."),
]
Hook = Annotated[str, typer.Option("--hook", metavar="PROGRAM", help="Gets alarms and verdicts as JSON on stdin.")]
Window = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--window", metavar="SECONDS", min=1.0, max=600.0, help="Length of a look. Usual: 20 steps, 5 to 60 s."
    ),
]
Out = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--out", metavar="STORE", help="A store that the hosts of a job share: all look at once, one judges."),
]
SpoolDir = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--spool", metavar="DIR", help="Where windows wait until the store has them."),
]
OtlpUrl = Annotated[
    str,
    typer.Option("--otlp", metavar="URL", help="Metrics to a collector, http://…:4318/v1/metrics: rankscope[otlp]."),
]
Nvsentinel = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--nvsentinel", metavar="SOCKET", help="Health events to NVSentinel's unix socket: rankscope[nvsentinel]."
    ),
]
Remediate = Annotated[
    bool, typer.Option("--nvsentinel-remediate", help="Let NVSentinel act on them; without it stores them only.")
]
PerHour = Annotated[
    int, typer.Option("--windows-per-hour", metavar="N", min=1, max=60, help="Looks at one job that nobody asked for.")
]
LiveWindow = Annotated[
    float,
    typer.Option(
        "--window", metavar="SECONDS", min=1.0, max=60.0, help="Length of a window, where no service watches."
    ),
]
Updates = Annotated[int, typer.Option("--updates", min=0, metavar="N", help="End after N updates. 0: go on.")]
Guard = Annotated[
    bool,
    typer.Option(
        "--guard", help="Watch nothing: keep users' file servers from holding up this host while probes are put in."
    ),
]
NoRoutine = Annotated[bool, typer.Option("--no-routine", help="No window about once an hour for the history.")]
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="NAME", help="What to show; `now`: the last minutes. None: list what is frozen."),
]
Html = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--html", metavar="FILE", help="Write a page as well; it must not be there yet."),
]
Which = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="JOB", help="This job: its name or title, or how one begins. None: all."),
]

Wait = Annotated[bool, typer.Option("--wait", help="Wait for the verdict, and print it.")]
AtMost = Annotated[
    float, typer.Option("--at-most", metavar="SECONDS", min=1.0, max=86400.0, help="How long --wait waits.")
]
Allowed = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--windows", metavar="DIR", help="Windows below it may be read; may be repeated. The history's may be anyway."
    ),
]
MostBytes = Annotated[
    int,
    typer.Option("--most-bytes", metavar="N", min=8192, max=1 << 20, help="Length of an answer; the rest on demand."),
]


def watch(
    state: State = _FOLDER,
    history: HistoryDir = _HISTORY,
    metrics: Metrics = None,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = "127.0.0.1",
    sweep_metrics: SweepMetrics = None,
    sweep: Sweep = _SWEEP,
    hook: Hook = "",
    window: Window = None,
    no_routine: NoRoutine = False,
    out: Out = None,
    spool: SpoolDir = None,
    windows_per_hour: PerHour = 3,
    otlp: OtlpUrl = "",
    nvsentinel: Nvsentinel = None,
    nvsentinel_remediate: Remediate = False,
    guard: Guard = False,
    as_json: Json = False,
) -> int:
    """The service: notices by itself, looks closer, names.

    And says when it is over. Ends with SIGTERM or SIGINT.
    """
    from rankscope.diagnose.face.cli.service import watch as command

    if guard:
        command.guard()
    routine = not no_routine
    scrapes = command.Scrapes(metrics_port, metrics_address, sweep_metrics)
    return command.run(
        state=state, history=history, metrics=metrics, scrapes=scrapes, sweep=sweep, hook=hook, window_s=window,
        routine=routine, as_json=as_json, out=out, spool=spool, per_hour=windows_per_hour, otlp=otlp,
        nvsentinel=nvsentinel, remediate=nvsentinel_remediate,
    )  # fmt: skip


def trigger(
    job: Job = None, state: State = _FOLDER, wait: Wait = False, at_most: AtMost = 300.0, as_json: Json = False
) -> int:
    """Ask the running service for a closer look now.

    With --wait it prints the verdict of each job that was looked at, and ends with the exit code of the worst; 3 where there was none
    in time. Else the verdict is in the service's log: DIR/events.jsonl, or `journalctl -u rankscope-watch`.
    """
    from rankscope.diagnose.face.cli.service import trigger as command

    return command.run(state=state, job=job, wait=wait, at_most_s=at_most, as_json=as_json)


def top(
    window: LiveWindow = 5.0,
    job: Job = None,
    state: State = _FOLDER,
    updates: Updates = 0,
    as_json: Json = False,
) -> int:
    """Live: where each rank's time goes, and who is suspected.

    Reads from `rankscope watch` where that serves this host, and costs the jobs nothing then. Else it observes window after window,
    which costs what `diagnose` costs, for as long as it runs. Keys on a terminal: q quits, h or ? shows the others, which sort.
    """
    from rankscope.diagnose.face.cli.service import top as command

    return command.run(state=state, window_s=window, job=job, updates=updates, as_json=as_json)


def blackbox(name: Name = None, state: State = _FOLDER, as_json: Json = False) -> int:
    """What the service kept of the minutes before a hang."""
    from rankscope.diagnose.face.cli.service import blackbox as command

    return command.run(state=state, name=name, as_json=as_json)


def ledger(job: Which = None, state: State = _FOLDER, html: Html = None, as_json: Json = False) -> int:
    """Where a job's hours went, from its start.

    Productive time, pauses by function and rank with how often they come, hangs, restarts, slow stretches, as the service saw them; and
    what would come back first.
    """
    from rankscope.diagnose.face.cli.service import ledger as command

    return command.run(state=state, job=job, html=html, as_json=as_json)


def mcp(
    windows: Allowed = None, history: HistoryDir = _HISTORY, state: State = _FOLDER, most_bytes: MostBytes = 32768
) -> int:
    """Serve agents by the Model Context Protocol, read only.

    A client starts it and talks to it through pipes. It gives windows, verdicts, ranks, ledgers and recordings of hangs as bounded answers
    in which all text is marked as data. It writes nothing; as root it can observe this host. Needs rankscope[mcp].
    """
    from rankscope.diagnose.face.cli.service import mcp as command

    return command.run(windows=tuple(windows or ()), history=history, state=state, most_bytes=most_bytes)
