"""`python -m imagekit.lock LOCK VERSION`: print the part of a lock that is for this version of Python on Linux, without conditions.

pip judges conditions by the Python that it runs on, also where it downloads for another one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def of_version(text: str, version: str) -> str:
    """Return the lock for one version of Python, e.g. '3.13': each package with its hashes."""
    # Not at the top: pip changes which distutils a process has.
    from pip._vendor.packaging.requirements import Requirement

    environment = {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": "linux"}
    kept, wanted = [], False
    for line in text.splitlines():
        if line[:1].isspace():  # a hash of the package above
            kept += [line] if wanted else []
            continue
        requirement = Requirement(line.rstrip(" \\"))
        wanted = requirement.marker is None or requirement.marker.evaluate(environment)
        kept += [f"{requirement.name}{requirement.specifier} \\"] if wanted else []
    return "".join(f"{line}\n" for line in kept)


def main(arguments: Sequence[str]) -> int:
    """Print the part; return the exit code."""
    if len(arguments) != 2:
        sys.stderr.write(__doc__ or "")
        return 64
    sys.stdout.write(of_version(Path(arguments[0]).read_text(encoding="utf-8"), arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
