"""Build backend: setuptools, told which packages there are. It cannot find them by itself, as rankscope.probes lies in probes/.

Wheels and editable installs both come through here (pyproject.toml, [build-system]); builds run in the root of the sources (PEP 517).
"""

from __future__ import annotations

from functools import partial

import setuptools
from setuptools.build_meta import *  # noqa: F403 - the hooks of PEP 517 and 660, which call setuptools.setup

FOLDERS = ("probes", "unwinder", "observer", "diagnose")


def packages() -> list[str]:
    """Return the dotted names of all packages below the working directory."""
    inner = [f"{folder}.{name}" for folder in FOLDERS for name in setuptools.find_packages(folder)]
    return sorted(f"rankscope.{name}" for name in (*FOLDERS, *inner))


setuptools.setup = partial(
    setuptools.setup, packages=packages(), package_dir={f"rankscope.{folder}": folder for folder in FOLDERS}
)
