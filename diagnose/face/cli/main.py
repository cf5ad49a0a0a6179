"""The command line: `rankscope COMMAND`. One exit code per situation (see the project's README.md);
no stack traces."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import io
import os
import shutil
import sys
import textwrap
import traceback
from pathlib import Path
from typing import Annotated, Optional

import typer

from rankscope.diagnose.collector import paused
from rankscope.diagnose.face.cli.host.sweep_arguments import sweep as sweep_command
from rankscope.diagnose.face.cli.options import (
    AtMost,
    Baselines,
    Engine,
    FlightRecorder,
    Folders,
    HistoryDir,
    Html,
    Job,
    Json,
    NoHistory,
    Out,
    Pids,
    StepsFile,
    Topology,
    Verbose,
    Window,
    WindowFolders,
)
from rankscope.diagnose.face.cli.service import arguments as service
from rankscope.diagnose.face.cli.shell.completion import prepare as prepare_completion
from rankscope.diagnose.face.cli.shell.plain_help import PlainCommand, PlainGroup
from rankscope.probes.base import room
from rankscope.probes.base.errors import EXIT_MISSING, EXIT_NOT_PERMITTED, EXIT_USAGE, RankscopeError

EXIT_INTERRUPTED = 130
EXIT_INTERNAL = 70
_REMEDIES = {  # for errors without an own help text
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
    errno.ENFILE: "Raise fs.file-max, or find who holds so many files (lsof).",
    errno.ENOMEM: "Raise the limit on memory (ulimit -v, MemoryMax), or take a shorter --window.",
    errno.ENOSPC: "Free space.",
}

app = typer.Typer(
    name="rankscope",
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Names the component that slows or stops a distributed training job, observing it from outside.\n\n"
    "Most often, as root on a host of the job:  rankscope diagnose\n\n"
    "To see first what it says, without root:  rankscope demo",
    epilog="Exit codes: 0 nothing wrong, 1 slow, 2 critical, 3 unknown, 64 usage, 65 bad data, 69 missing, 70 internal error, "
    "77 not permitted.",
)


def _version(wanted: bool) -> None:
    """Print the version and end the command, if wanted. Raises typer.Exit."""
    if wanted:
        try:
            typer.echo(f"rankscope {importlib.metadata.version('rankscope')}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo("rankscope (not installed)")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(cls=PlainCommand)
def diagnose(
    folders: Folders = None,
    baseline: Baselines = None,
    steps: StepsFile = None,
    window: Window = 20.0,
    at_most: AtMost = 120.0,
    job: Job = None,
    pid: Pids = None,
    history: HistoryDir = None,
    no_history: NoHistory = False,
    engine: Engine = "local",
    topology: Topology = None,
    flight_recorder: FlightRecorder = None,
    html: Html = None,
    out: Out = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Name what slows or stops the job: now, or from windows."""
    with paused():
        from rankscope.diagnose.face.cli import diagnose as command

    return command.run(
        folders=tuple(folders or ()),
        baseline=tuple(baseline or ()),
        steps=steps,
        window_s=window,
        at_most_s=at_most,
        job=job,
        pids=tuple(pid or ()),
        as_json=as_json,
        verbose=verbose,
        history=history,
        keep=not no_history,
        engine=engine,
        topology=topology,
        flight_recorder=flight_recorder,
        html=html,
        out=out,
    )


@app.command(cls=PlainCommand)
def report(
    folders: WindowFolders,
    html: Annotated[
        Path,
        typer.Option(
            "--html", metavar="FILE", help="The page to write, which must not be there yet; -: standard output."
        ),
    ],
    baseline: Baselines = None,
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Windows as one page for a browser: verdict and evidence."""
    with paused():
        from rankscope.diagnose.face.cli import diagnose as command

    return command.report(tuple(folders), tuple(baseline or ()), job, html, as_json)


@app.command(cls=PlainCommand)
def demo(html: Html = None, as_json: Json = False) -> int:
    """A recorded job, judged and explained; without root.

    It needs neither a job nor PyTorch, and ends with 0.
    """
    with paused():
        from rankscope.diagnose.face.cli import demo as command

    return command.run(html=html, as_json=as_json)


@app.command(cls=PlainCommand)
def record(
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder to put the window folders in, made if missing; or a store: s3://bucket/path, gs://…, file:///mnt/…",
        ),
    ],
    window: Window = 20.0,
    job: Job = None,
    pid: Pids = None,
    history: HistoryDir = None,
    spool: Annotated[
        Path,
        typer.Option("--spool", metavar="DIR", help="Where windows wait until the store has them; 256 MiB at most."),
    ] = Path("/var/lib/rankscope/spool"),
    as_json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Observe one window and write window files."""
    with paused():
        from rankscope.diagnose.face.cli import record as command

    return command.run(
        out=out, window_s=window, job=job, pids=tuple(pid or ()), as_json=as_json, verbose=verbose, history=history,
        spool=spool,
    )  # fmt: skip


@app.command(cls=PlainCommand)
def ranks(as_json: Json = False, verbose: Verbose = False) -> int:
    """The training processes found here; -v: what was rejected."""
    from rankscope.diagnose.face.cli.host import ranks as command

    return command.run(as_json=as_json, verbose=verbose)


@app.command(cls=PlainCommand)
def doctor(as_json: Json = False, verbose: Verbose = False) -> int:
    """Can this host be observed? What is missing, how to get it."""
    from rankscope.diagnose.face.cli.host import doctor as command

    return command.run(as_json=as_json, verbose=verbose)


@app.command(cls=PlainCommand)
def causes(as_json: Json = False) -> int:
    """What can be named, and how often that was right.

    By which witness, and counted on recorded windows.
    """
    from rankscope.diagnose.face.cli import causes as command

    return command.run(as_json=as_json)


@app.command(cls=PlainCommand)
def prune(
    place: Annotated[str, typer.Argument(metavar="DIR", help="A store, or a folder of objects.")],
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0.0, help="Remove windows that are older.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    clock_is_right: Annotated[
        bool, typer.Option("--clock-is-right", help="Also where that leaves none, or only some of another year.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Remove old windows from a store.

    It may be stopped and run again.
    """
    from rankscope.diagnose.face.cli.stores import tidy as command

    return command.prune(place, older_than_days=older_than, dry=dry_run, clock_is_right=clock_is_right, as_json=as_json)


@app.command(cls=PlainCommand)
def compact(
    place: Annotated[str, typer.Argument(metavar="DIR", help="A store, or a folder of objects.")],
    as_json: Json = False,
) -> int:
    """Put a moment's windows of a store together.

    It may be stopped and run again.
    """
    from rankscope.diagnose.face.cli.stores import tidy as command

    return command.compact(place, as_json=as_json)


@app.command(cls=PlainCommand)
def reputation(
    places: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="DIR", help="Windows to take in first: folders or stores. None: only say what is known."
        ),
    ] = None,
    keep: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--keep", metavar="FILE", help="Where it is kept; /var/lib/rankscope/reputation.sqlite."),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Which GPU, which host is always a little slow, in all jobs."""
    from rankscope.diagnose.face.cli.stores import reputation as command

    return command.run(tuple(places or ()), keep=keep, as_json=as_json, verbose=verbose)


for service_command in (service.top, service.watch, service.trigger, service.blackbox, service.ledger, service.mcp):
    app.command(cls=PlainCommand)(service_command)
app.command(name="sweep", cls=PlainCommand)(sweep_command)


@app.command(cls=PlainCommand)
def export(
    folders: WindowFolders,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="speedscope, folded, pprof, perfetto or csv.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="The file to write, which must not be there yet; -: standard output."
        ),
    ],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Windows for speedscope, pprof, Perfetto and tables.

    csv holds parts of steps by kind, without functions, links and counters: `diagnose --steps` names a rank of it, and not why. For the
    same verdict elsewhere: `rankscope bundle`.
    """
    from rankscope.diagnose.face.cli import export as command

    return command.run(tuple(folders), job, to, out, as_json)


@app.command(cls=PlainCommand)
def bundle(
    folders: WindowFolders,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="The file to write, which must not be there yet; -: standard output."
        ),
    ],
    baseline: Baselines = None,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Keep names of hosts, jobs, files and functions.")
    ] = False,
    key: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--key", metavar="FILE", help="Also write, for you alone, what each name stands for: f9 on host-4 is whose?"
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Windows as one small file without names, to pass on.

    `rankscope diagnose FILE` says the same of it anywhere.
    """
    from rankscope.diagnose.face.cli import bundle as command

    return command.run(tuple(folders), tuple(baseline or ()), out, keep_names, as_json, key)


@app.command(cls=PlainCommand)
def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> int:
    """Let the shell complete commands and options.

    For bash: source <(rankscope completion bash)
    """
    from rankscope.diagnose.face.cli.shell import completion as command

    return command.run(shell)


def main() -> None:
    """Entry point of the `rankscope` command."""
    for stream in (sys.stdout, sys.stderr):  # escape characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Every error becomes one line on stderr."""
    prepare_completion()
    try:
        code = app(arguments, standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # Typer's code for an interrupt
            raise KeyboardInterrupt
    except RankscopeError as error:
        return _say(error, error.help.replace("COMMAND", arguments[0] if arguments else ""), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted; nothing was left behind", "", EXIT_INTERRUPTED)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # Typer's exit when the reader (head, less) is gone: print and flush nothing more.
        from rankscope.diagnose.face.cli.output import say_no_more

        say_no_more(sys.stdout)
        return 0
    except PermissionError as error:
        return _say(_of_system(error), "Run as root.", EXIT_NOT_PERMITTED)
    except OSError as error:
        return _say(_of_system(error), _REMEDIES.get(error.errno or 0, ""), EXIT_MISSING)
    except MemoryError as error:
        return _say(f"not enough memory{f': {error}' if str(error) else ''}", _REMEDIES[errno.ENOMEM], EXIT_MISSING)
    except ImportError as error:  # of modules loaded on demand
        return _say(error, f"Run scripts/setup again. {_REMEDIES[errno.ENOMEM]}", EXIT_MISSING)
    except Exception as error:
        if (said := _usage_error(error)) is not None:
            return said
        if room.refused_a_thread(error):
            return _say("the host lets no thread be started", room.THREADS_HELP, EXIT_MISSING)
        if room.limited() and isinstance(error, SystemError):  # from C libraries that fail to report a lack of memory
            return _say(f"not enough memory, it seems: {error}", _REMEDIES[errno.ENOMEM], EXIT_MISSING)
        if "-v" in arguments or "--verbose" in arguments:
            traceback.print_exc()
        return _say(
            f"internal error: {type(error).__name__}: {error}", "Run again with -v and report it.", EXIT_INTERNAL
        )
    return code if isinstance(code, int) else 0


def _of_system(error: OSError) -> str:
    """Word an error of the system without its number: '/var/lib/x: permission denied'."""
    what = (error.strerror or str(error)).strip()
    return f"{os.fsdecode(error.filename)}: {what[:1].lower()}{what[1:]}" if error.filename else what


def _usage_error(error: Exception) -> int | None:
    """Report a wrong command line and return its exit code; None for any other error.

    Recognises click's errors by name, as typer may use its own copy of click.
    """
    names = {base.__name__ for base in type(error).__mro__}
    if "ClickException" not in names:
        return None
    message = str(getattr(error, "format_message", lambda: error)())
    if "NoArgsIsHelpError" in names:
        sys.stderr.write(f"{message}\n")
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    return _say(
        message.rstrip("."), f"See `{getattr(context, 'command_path', None) or 'rankscope'} --help`.", EXIT_USAGE
    )


def _say(message: object, remedy: str, code: int) -> int:
    """Print an error with its remedy on stderr, in one line or wrapped for a terminal; return `code`."""
    from rankscope.diagnose.text import clean

    line = clean(" ".join(str(message).split()), 400)
    said = f"rankscope: {line}{'. ' + remedy if remedy else ''}"
    if sys.stderr.isatty():  # wrap for a terminal; a pipe gets one line
        width = shutil.get_terminal_size().columns
        said = textwrap.fill(said, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    with contextlib.suppress(OSError):  # stderr is closed
        sys.stderr.write(f"{said}\n")
    return code


if __name__ == "__main__":
    main()
