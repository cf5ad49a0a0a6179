"""Programs that were compiled before these sources were installed: in a wheel, a .deb, or a clone that scripts/setup has prepared.

They lie in a folder beside this file, under the digest of all that they were made of (loader.key_of): of other sources there are none.
They are as trusted as the Python code beside them, and written by whoever may write that.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rankscope.probes import abilities

FOLDER = Path(__file__).with_name("objects")
_SUFFIX = ".json"


def read(key: str) -> bytes | None:
    """Return what was compiled under this key; None where nothing was."""
    if abilities.lacking(abilities.COMPILED_AHEAD):
        return None
    with contextlib.suppress(OSError):
        return (FOLDER / f"{key}{_SUFFIX}").read_bytes()
    return None


def write(compiled: dict[str, bytes], folder: Path) -> None:
    """Make `folder` hold what was compiled, by key, and nothing of earlier sources. OSError."""
    folder.mkdir(mode=0o755, exist_ok=True)
    for key, blob in compiled.items():
        (folder / f"{key}{_SUFFIX}").write_bytes(blob)
    for other in folder.glob(f"*{_SUFFIX}"):
        if other.stem not in compiled:
            other.unlink()
