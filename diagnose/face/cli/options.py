"""Options and arguments shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Explain: all evidence and notes.")]
Window = Annotated[float, typer.Option("--window", metavar="SECONDS", min=1, max=3600, help="Length of the window.")]
AtMost = Annotated[
    float,
    typer.Option(
        "--at-most",
        metavar="SECONDS",
        min=1,
        max=3600,
        help="Where a window is too short to tell, a longer one follows; so long in all.",
    ),
]
Job = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="This job alone: its title or name, or how they begin.")
]
HistoryDir = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--history",
        metavar="DIR",
        help="Where healthy windows are kept for --baseline auto. Without it diagnose keeps them in /var/lib/rankscope/history, "
        "record nowhere.",
    ),
]
Folders = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="DIR",
        help="Window folders, folders of them, bundles, or stores (s3://…). None: observe this host now.",
    ),
]
WindowFolders = Annotated[
    list[str], typer.Argument(metavar="DIR", help="Window folders, folders of them, bundles, or stores (s3://…).")
]
Baselines = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--baseline",
        metavar="DIR",
        help="Earlier windows of the same job; may be repeated. auto: healthy ones of the history.",
    ),
]
StepsFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--steps",
        metavar="FILE",
        help="Judge timings measured by others: Parquet or CSV with rank, step, "
        "function, kind, seconds; optional role, host, count, waits.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="What reads windows of more than 512 hosts: this host alone (local), ray or dask.",
    ),
]
Topology = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--topology",
        metavar="FILE",
        help="Which hosts share what: CSV of host,rack,switch,filesystem; Slurm's topology.conf; `kubectl get nodes -o json`.",
    ),
]
FlightRecorder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--flight-recorder",
        metavar="DIR",
        help="Dumps of PyTorch's flight recorder, one per rank: another witness of a hang; without windows they are judged alone.",
    ),
]
NoHistory = Annotated[bool, typer.Option("--no-history", help="Keep nothing of what is observed now.")]
Html = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--html", metavar="FILE", help="Also write it as one page for a browser; FILE must not be there yet."),
]
Out = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--out", metavar="DIR", help="Also write the windows that it observed and judged, as record does."),
]
Pids = Annotated[Optional[list[int]], typer.Option("--pid", metavar="PID", help="Observe these alone.")]  # noqa: UP045
