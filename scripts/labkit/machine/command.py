"""What the commands of scripts/ share: wrong usage ends with 64 and one line, an error with its line of help."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from labkit.machine.shell import EXIT_USAGE, LabError

EXIT_INTERRUPTED = 130  # as a shell says of SIGINT


class Parser(argparse.ArgumentParser):
    """`prog` is scripts/NAME; argparse's own exit code for wrong usage, 2, means something critical here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{Path(self.prog.split()[0]).name}: {message}\n")


def ended(name: str, act: Callable[[], int], interrupted: str) -> int:
    """The exit code of `act`; a LabError, a reader that has gone and Ctrl-C become one too, with what there is to say."""
    try:
        return act()
    except LabError as error:
        print(f"{name}: {error}", file=sys.stderr)
        if error.help:
            print(f"{' ' * len(name)}  {error.help}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
