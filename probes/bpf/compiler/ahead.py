"""Programs that were compiled before these sources were installed: in a wheel, a .deb, or by scripts/setup.

They lie in a folder next to this file, under the digest of everything they were made of
(loader.key_of), so other sources never match. They are as trusted as the Python code next to them:
the same users can write both.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rankscope.probes.base import abilities

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
    """Write compiled programs to `folder` by key, and delete those of earlier sources. Raises
    OSError.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    for key, blob in compiled.items():
        (folder / f"{key}{_SUFFIX}").write_bytes(blob)
    for other in folder.glob(f"*{_SUFFIX}"):
        if other.stem not in compiled:
            other.unlink()
