"""`rankscope completion SHELL`: print the completion script, and answer the shell's completion
requests."""

from __future__ import annotations

import os

from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import EXIT_HEALTHY, UsageError

SHELLS = ("bash", "zsh", "fish")
ASKED = "_RANKSCOPE_COMPLETE"  # set by the shell's script in a completion request


def run(shell: str) -> int:
    """Print the completion script for a shell, without installing it; return exit code 0."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # made for its own --show-completion

    if shell not in SHELLS:
        raise UsageError(f"there is no completion for {clean(shell, 40)!r}, only for {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="rankscope", complete_var=ASKED, shell=shell))
    return EXIT_HEALTHY


def prepare() -> None:
    """Initialise typer's completion if the shell requests it."""
    if ASKED in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
