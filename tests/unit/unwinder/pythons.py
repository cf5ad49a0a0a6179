"""The CPython interpreters that happen to be installed here, besides the one that runs the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_PLACES = (Path("/usr/bin"), Path("/usr/local/bin"), Path("/opt"))
_NAME = re.compile(r"python3\.(\d+)$")


def installed() -> dict[int, str]:
    """Minor version -> an interpreter of it; that of the tests first."""
    found = {sys.version_info.minor: sys.executable}
    versions = Path.home() / ".pyenv" / "versions"
    candidates = [path for place in _PLACES for path in sorted(place.glob("python3.*"))]
    candidates += sorted(versions.glob("3.*/bin/python3.*"))
    for path in candidates:
        match = _NAME.search(path.name)
        if match and int(match[1]) not in found and _runs(path):
            found[int(match[1])] = str(path)
    return dict(sorted(found.items()))


def _runs(path: Path) -> bool:
    try:
        return subprocess.run([str(path), "-c", ""], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


INSTALLED = installed()
KNOWN = {minor: path for minor, path in INSTALLED.items() if 8 <= minor <= 15}
OLD = {minor: path for minor, path in INSTALLED.items() if minor < 8}
