"""Options of `rankscope sweep`.

The work is in `rankscope.diagnose.face.cli.host.sweep`, imported on call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

_Only = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--only", metavar="ID", help="Run these checks only: ids or families."),
]
_Skip = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--skip", metavar="ID", help="Leave these checks out."),
]
_Text = Optional[str]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045
_Sweeps = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Argument(metavar="DIR", help="Compare many hosts' sweeps (files of --json). None: sweep this host."),
]
_List = Annotated[bool, typer.Option("--list", help="List all checks.")]
_Explain = Annotated[_Text, typer.Option("--explain", metavar="ID", help="What a check reads and how it judges.")]
_FailOn = Annotated[
    _Text, typer.Option("--fail-on", metavar="STATE", help="Exit 0 below this: unknown (default), warning, critical.")
]
_Config = Annotated[_File, typer.Option("--config", metavar="FILE", help="Thresholds and known quirks (TOML).")]
_State = Annotated[Path, typer.Option("--state", metavar="DIR", help="Memory of earlier sweeps.")]
_Textfile = Annotated[
    _File, typer.Option("--textfile", metavar="FILE", help="Write metrics for Prometheus' node exporter.")
]
_Syslog = Annotated[bool, typer.Option("--syslog", help="Also log what is wrong to syslog.")]
_Hook = Annotated[
    str, typer.Option("--hook", metavar="PROGRAM", help="Gets the JSON of a critical sweep on its standard input.")
]
_Nvsentinel = Annotated[
    _File,
    typer.Option(
        "--nvsentinel", metavar="SOCKET", help="Health events to NVSentinel's unix socket: rankscope[nvsentinel]."
    ),
]
_Remediate = Annotated[
    bool, typer.Option("--nvsentinel-remediate", help="Let NVSentinel act on them; without it stores them only.")
]
_Root = Annotated[Path, typer.Option("--root", hidden=True)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Every finding, and why checks do not apply.")]


def sweep(
    sweeps: _Sweeps = None,
    only: _Only = None,
    skip: _Skip = None,
    list_them: _List = False,
    explain: _Explain = None,
    fail_on: _FailOn = None,
    config: _Config = None,
    state: _State = Path("/var/lib/rankscope/sweep"),
    textfile: _Textfile = None,
    to_syslog: _Syslog = False,
    hook: _Hook = "",
    nvsentinel: _Nvsentinel = None,
    nvsentinel_remediate: _Remediate = False,
    root: _Root = Path("/"),
    as_json: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """Health checks of this host for cron; many hosts compared."""
    from rankscope.diagnose.face.cli.host import sweep as command

    if list_them:
        return command.list_checks(as_json)
    if explain is not None:
        return command.explain(explain)
    if sweeps:
        return command.compare(tuple(sweeps), as_json, verbose)
    return command.run(
        command.Options(
            only=tuple(only or ()), skip=tuple(skip or ()), fail_on=fail_on, config=config, state=state, textfile=textfile,
            to_syslog=to_syslog, hook=hook, nvsentinel=nvsentinel, remediate=nvsentinel_remediate, root=root, as_json=as_json,
            verbose=verbose,
        )
    )  # fmt: skip
