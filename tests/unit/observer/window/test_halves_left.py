"""What a killed writer had half-written goes when its folder is tidied; what somebody still writes stays."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rankscope.observer.window import staging


def half(folder: Path) -> Path:
    """As a writer of this host leaves it."""
    made = folder / staging.partial_name()
    made.mkdir()
    (made / "ranks.parquet").write_bytes(b"half")
    made.with_name(f"{made.name}.lock").touch()
    return made


def test_halves_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    left, written = half(tmp_path), half(tmp_path)
    (tmp_path / "window").mkdir()
    lock = os.open(written.with_name(f"{written.name}.lock"), os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        staging.tidy(tmp_path)
    finally:
        os.close(lock)
    assert {path.name for path in tmp_path.iterdir()} == {"window", written.name, f"{written.name}.lock"}
    assert not left.exists()
    staging.tidy(tmp_path / "none")
