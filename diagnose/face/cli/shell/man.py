"""Make manual pages from the command line's help: `python -m rankscope.diagnose.face.cli.shell.man DIR`
(scripts/package).

One page for the program and one per command, in man(7) macros, which groff and mandoc both know."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main

from rankscope.diagnose.face.cli.main import app

_EXITS = (
    ("0", "Nothing wrong."), ("1", "Slow or degraded: fault, imbalance, inefficient, warning."),
    ("2", "Critical: a hang, a dead rank, hardware that failed."), ("3", "Could not judge."),
    ("64", "Wrong usage."), ("65", "Bad input data."), ("69", "Something that is needed is missing."), ("70", "Internal error."),
    ("77", "Not permitted."), ("130", "Interrupted; nothing was left behind."),
)  # fmt: skip
_FILES = (
    ("/var/cache/rankscope", "Probes that were compiled for this kernel. May be removed at any time."),
    ("/var/lib/rankscope/history", "Windows that later ones are compared with (--baseline auto)."),
    ("/var/lib/rankscope/watch", "The service's folder: lock, log, black box, ledgers."),
    ("/var/lib/rankscope/spool", "Windows on their way to a store."),
)
_WORDS = (
    ("rank", "One training process of a job, with its number."),
    ("step", "One iteration of the job's own training loop, as the job itself would count it."),
    ("window", "Some seconds of observation, and the files that hold what was seen in them."),
    ("own time", "What a rank works itself in a step: the step without its waiting for other ranks."),
    ("stay", "The time of a rank inside a collective: it waits for the others, then the data moves. All leave together."),
    ("waits least", "Who comes last to a collective has the shortest stay in it: that is the rank that the others wait for."),
    ("lost time", "What a step would be shorter by if the suspect were as its peers are."),
)  # fmt: skip
_EXAMPLES = (
    ("rankscope demo", "A recorded job, judged and explained line by line: no root, no job needed."),
    ("rankscope diagnose", "Observe this host for 20 s, then name the culprit of each job here."),
    ("rankscope record --out DIR", "On every host of a job, at about the same time;"),
    ("rankscope diagnose DIR...", "then anywhere, without root: all hosts' windows together."),
    ("rankscope report DIR --html page.html", "The verdict and all it rests on, as one page for a browser."),
)


def pages(version: str, date: str) -> dict[str, str]:
    """Text of each page by file name. `date`: YYYY-MM-DD."""
    group: Any = typer.main.get_command(app)  # click's or typer's copy of it, without common types
    context = group.make_context("rankscope", [], resilient_parsing=True)
    found = {"rankscope.1": "\n".join(_program(group, context, version, date)) + "\n"}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        with command.make_context(name, [], parent=context, resilient_parsing=True) as inner:
            found[f"rankscope-{name}.1"] = "\n".join(_command(name, command, inner, version, date)) + "\n"
    return found


def _program(group: Any, context: Any, version: str, date: str) -> Iterator[str]:
    """Yield the lines of the program's page; `date`: YYYY-MM-DD."""
    first, *rest = _paragraphs(group.help)
    yield from _head("rankscope", first.rstrip("."), version, date)
    yield from (".SH SYNOPSIS", ".B rankscope", ".I COMMAND", r"[\fIOPTIONS\fR] [\fIARGUMENTS\fR]")
    yield from (".SH DESCRIPTION", prose(first))
    for paragraph in rest:
        yield from (".PP", prose(paragraph))
    yield ".SH EXAMPLES"
    for typed, said in _EXAMPLES:
        yield from (".TP", rf"\fB{text(typed)}\fR", prose(said))
    yield ".SH COMMANDS"
    for name in group.list_commands(context):
        said = _paragraphs(group.get_command(context, name).help)[0]
        yield from (".TP", rf"\fB{text(name)}\fR", prose(said), rf"See \fBrankscope\-{text(name)}\fR(1).")
    yield from _options(group, context)
    yield ".SH WORDS"
    for word, said in _WORDS:
        yield from (".TP", rf"\fB{text(word)}\fR", prose(said))
    yield from _tail([])


def _command(name: str, command: Any, context: Any, version: str, date: str) -> Iterator[str]:
    """Yield the lines of a command's page; `date`: YYYY-MM-DD."""
    said, *rest = _paragraphs(command.help)
    yield from _head(f"rankscope-{name}", said.rstrip("."), version, date)
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    yield from (
        ".SH SYNOPSIS",
        rf"\fBrankscope {text(name)}\fR [\fIOPTIONS\fR]",
        *(_argument(each) for each in arguments),
    )
    yield from (".SH DESCRIPTION", prose(said))
    for paragraph in rest:
        yield from (".PP", prose(paragraph))
    told = [each for each in arguments if getattr(each, "help", None)]
    if told:
        yield ".SH ARGUMENTS"
        for each in told:
            yield from (".TP", _argument(each), prose(each.help))
    yield from _options(command, context)
    yield from _tail([name])


def _options(command: Any, context: Any) -> Iterator[str]:
    """Yield the section on the options of a command."""
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if parameter.param_type_name == "option" else None
        if record is not None:
            forms, said = record
            yield from (".TP", _forms(forms), prose(said))


def _head(name: str, said: str, version: str, date: str) -> Iterator[str]:
    """Yield the head of a page and its section NAME; `said`: what it is, in a sentence."""
    yield f'.TH {text(name.upper())} 1 {date} "Rankscope {text(version)}" "Rankscope"'
    yield from (".SH NAME", rf"{text(name)} \-", prose(said))


def _tail(others: Sequence[str]) -> Iterator[str]:
    """Yield the last sections: exit codes, then files for the program ([]), or a reference to it for a command."""
    yield ".SH EXIT STATUS"
    for code, said in _EXITS:
        yield from (".TP", rf"\fB{code}\fR", prose(said))
    if not others:
        yield ".SH FILES"
        for path, said in _FILES:
            yield from (".TP", rf"\fI{text(path)}\fR", prose(said))
        return
    yield from (".SH SEE ALSO", r"\fBrankscope\fR(1)")


def _argument(parameter: Any) -> str:
    """Format an argument, 'DIR' or '[DIR]...': optional in brackets, repeatable with dots."""
    name = rf"\fI{text(parameter.metavar or parameter.name.upper())}\fR"
    return (name if parameter.required else f"[{name}]") + ("..." if parameter.nargs == -1 else "")


def _forms(forms: str) -> str:
    """Format option names, '-v, --verbose', in bold and their values plain."""
    return re.sub(r"(?<!\S)-{1,2}[A-Za-z][A-Za-z-]*", lambda found: rf"\fB{text(found[0])}\fR", forms).replace(
        "...", r"\&..."
    )


def _paragraphs(told: str) -> list[str]:
    """Split a help text into paragraphs, each in one line."""
    return [" ".join(one.split()) for one in re.split(r"\n\s*\n", told.strip())]


def prose(said: str) -> str:
    """Escape a text for roff, wrapped to readable lines."""
    return "\n".join(text(line) for line in textwrap.wrap(said, 78, break_long_words=False, break_on_hyphens=False))


def text(said: str) -> str:
    """Escape a line for roff: backslashes, minus signs, and a leading dot or quote."""
    escaped = (
        said.replace("\\", r"\e").replace("-", r"\-").replace("…", "...").replace("→", r"\(->").replace("’", r"\(cq")
    )
    return r"\&" + escaped if escaped.startswith((".", "'")) else escaped


def main(folder: str) -> None:
    """Write the pages into a folder."""
    import importlib.metadata

    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())))
    for name, content in pages(importlib.metadata.version("rankscope"), date).items():
        (Path(folder) / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
