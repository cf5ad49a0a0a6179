"""`--help` in the words of its user, as wide as the terminal: arguments by their names, commands with all that is said of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from rankscope.diagnose import collector
from rankscope.diagnose.cli.output import WIDTH, width_of


class PlainCommand(TyperCommand):
    """A command whose arguments are told as `DIR`, where typer would have `DIR <list[str]>`."""

    def invoke(self, ctx: Any) -> Any:
        """Run it: what it was typed with is understood, and all that takes is loaded."""
        collector.begin()
        return super().invoke(ctx)

    def get_help(self, ctx: Any) -> str:
        """The help, in lines of the terminal."""
        ctx.terminal_width = _columns()
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            told = [each.get_help_record(ctx) for each in self.get_params(ctx) if each.param_type_name == kind]
            records = [
                (name.partition(" <")[0] if kind == "argument" else name, said) for name, said in filter(None, told)
            ]
            _write(formatter, title, records)


class PlainGroup(TyperGroup):
    """The list of the commands, none of whose lines ends in `...`."""

    def get_help(self, ctx: Any) -> str:
        """The help, in lines of the terminal."""
        ctx.terminal_width = _columns()
        return super().get_help(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command with the first paragraph of what it says of itself."""
        said = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        records = [(name, " ".join((one.help or "").split("\n\n")[0].split())) for name, one in said if one is not None]
        _write(formatter, "Commands", records)


def _columns() -> int:
    return min(width_of(sys.stdout), WIDTH)


def _write(formatter: Any, title: str, records: Iterable[tuple[str, str]]) -> None:
    """A list of names with what is said of each, beside it where there is room."""
    if records:
        with formatter.section(title):
            formatter.write_dl(list(records), col_max=min(30, formatter.width // 3))
