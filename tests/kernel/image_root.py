"""The image of this clone, built by scripts/package, and its root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
_BUILDERS = ("buildah", "podman", "docker", "debootstrap")
_LABEL = "org.opencontainers.image.revision"


def archive(folder: Path) -> Path:
    """The image of exactly these sources: that of dist/, or one that is built now, in some minutes and from Debian's packages.

    RANKSCOPE_IMAGE in the environment: this archive, of whatever sources and builder.
    """
    if given := os.environ.get("RANKSCOPE_IMAGE"):
        return Path(given)
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.strip()
    for path in (REPOSITORY / "dist").glob("rankscope-*.oci.tar"):
        if not revision.endswith("-dirty") and _configuration(path)["config"]["Labels"][_LABEL] == revision:
            return path
    if not any(shutil.which(one) for one in _BUILDERS) and not os.environ.get("CI"):
        pytest.skip("neither debootstrap nor a builder of images (scripts/setup --lab)")
    command = [str(REPOSITORY / "scripts/package"), "--image", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 69 and not os.environ.get("CI"):
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


def unpacked(image: Path, root: Path) -> dict[str, Any]:
    """Make the image's root; return its configuration."""
    root.mkdir()
    with tarfile.open(image) as tar:
        for layer in _manifest(tar)["layers"]:
            subprocess.run(["tar", "-xz", "-C", str(root)], input=_blob(tar, layer["digest"]), check=True)
            for gone in list(root.rglob(".wh.*")):  # what a layer takes away
                below = gone.with_name(gone.name.removeprefix(".wh."))
                shutil.rmtree(below) if below.is_dir() and not below.is_symlink() else below.unlink(missing_ok=True)
                gone.unlink()
    return _configuration(image)


def _configuration(image: Path) -> dict[str, Any]:
    with tarfile.open(image) as tar:
        found: dict[str, Any] = json.loads(_blob(tar, _manifest(tar)["config"]["digest"]))
        return found


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    (entry,) = json.loads(_member(tar, "index.json"))["manifests"]
    found: dict[str, Any] = json.loads(_blob(tar, entry["digest"]))
    return found


def _blob(tar: tarfile.TarFile, digest: str) -> bytes:
    return _member(tar, f"blobs/{digest.replace(':', '/')}")


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None, name
    return file.read()
