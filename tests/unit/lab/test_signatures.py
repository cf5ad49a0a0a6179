"""Functions for a reader who may not see the bodies: what is shown, and what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testkit.signatures import functions_in

REPOSITORY = Path(__file__).parents[3]
CODE = '''"""A module of two functions."""

class Kept:
    """What is kept."""

    def __len__(self) -> int:
        return 7

    def grow(self, by: int = 1) -> int:
        """Return the new size."""
        secret = by + 1
        return secret

def plain(text: str) -> str:
    return text.strip("secret")
'''


def test_signature_and_docstring_are_shown_and_no_body(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room/kept.py").write_text(CODE)
    grow, plain = functions_in(Path("room"), tmp_path)
    assert grow.shown().splitlines() == [
        "room/kept.py — A module of two functions.", "class Kept: What is kept.", "def grow(self, by: int=1) -> int:",
        '    """Return the new size."""',
    ]  # fmt: skip
    assert "(no docstring)" in plain.shown() and "secret" not in grow.shown() + plain.shown()
    assert "secret" in grow.whole() and "secret" in plain.whole()


def test_the_same_seed_draws_the_same_functions() -> None:
    command = [sys.executable, "-m", "testkit.signatures", "unwinder", "--count", "5", "--seed"]
    first, again, other = (
        subprocess.run(
            [*command, seed], cwd=REPOSITORY, env={"PYTHONPATH": "scripts"}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "1", "2")
    )
    assert first == again != other and first.count("unwinder/") >= 5
