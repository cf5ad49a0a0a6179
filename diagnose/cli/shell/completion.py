"""`rankscope completion SHELL`: what makes a shell complete commands and options; and the answer when the shell asks."""

from __future__ import annotations

import os

from rankscope.diagnose.text import clean
from rankscope.probes.errors import EXIT_HEALTHY, UsageError

SHELLS = ("bash", "zsh", "fish")
ASKED = "_RANKSCOPE_COMPLETE"  # is set by the shell's script when it wants to know how a line may go on


def run(shell: str) -> int:
    """Print the script for a shell. Nothing is installed: whose shell it is decides."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # made for its own --show-completion

    if shell not in SHELLS:
        raise UsageError(f"there is no completion for {clean(shell, 40)!r}, only for {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="rankscope", complete_var=ASKED, shell=shell))
    return EXIT_HEALTHY


def prepare() -> None:
    """Make typer understand a shell that asks, where one does."""
    if ASKED in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
