"""Help as wide as the terminal, with plain argument names and complete command descriptions."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from rankscope.diagnose import collector
from rankscope.diagnose.face.cli.output import WIDTH, width_of
from rankscope.diagnose.face.cli.shell import dash


class PlainCommand(TyperCommand):
    """A command whose help names arguments `DIR` instead of typer's `DIR <list[str]>`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the parsed command, after enabling the cyclic garbage collector (collector.py)."""
        dash.refuse(ctx.info_name, ((each, ctx.params.get(each.name)) for each in self.params))
        collector.begin()
        return super().invoke(ctx)

    def get_help(self, ctx: Any) -> str:
        """Format the help for the terminal's width."""
        ctx.terminal_width = _columns()
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            told = [each.get_help_record(ctx) for each in self.get_params(ctx) if each.param_type_name == kind]
            records = [
                (name.partition(" <")[0] if kind == "argument" else name, said) for name, said in filter(None, told)
            ]
            _write(formatter, title, records)


class PlainGroup(TyperGroup):
    """The list of commands, with descriptions that are never cut by `...`."""

    def get_help(self, ctx: Any) -> str:
        """Format the help for the terminal's width."""
        ctx.terminal_width = _columns()
        return super().get_help(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first paragraph of its help."""
        said = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        records = [(name, " ".join((one.help or "").split("\n\n")[0].split())) for name, one in said if one is not None]
        _write(formatter, "Commands", records)


def _columns() -> int:
    """Width of the help: the terminal's, at most `WIDTH`."""
    return min(width_of(sys.stdout), WIDTH)


def _write(formatter: Any, title: str, records: Iterable[tuple[str, str]]) -> None:
    """Write a section of names with descriptions, next to the name if there is room."""
    if records:
        with formatter.section(title):
            formatter.write_dl(list(records), col_max=min(30, formatter.width // 3))
