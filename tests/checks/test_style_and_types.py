"""What the tools that read the code say of it: style, types, and the functions of real libraries that the call table names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        (TOOLS / "ruff", "check", "."),
        (TOOLS / "ruff", "format", "--check", "."),
        (TOOLS / "mypy", *(("--cache-dir=/dev/null",) if os.environ.get("CI") else ())),  # there nobody asks again
        # Downloads; where no registry is, it says so and passes.
        (REPOSITORY / "scripts/symbols", "--small", "--check"),
    ],
    ids=["style", "format", "types", "symbols"],
)
def test_nothing_is_complained_of(command: tuple[str | Path, ...]) -> None:
    said = subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert said.returncode == 0, said.stdout
