"""Kernel headers for bcc's compiler: found, or joined from what the distribution splits.

bcc needs headers only to compile its own helpers; our programs touch no kernel structure through them (DESIGN.md,
"Rules for the kernel side"), so headers of another kernel version do. Debian ships two trees
(`linux-headers-X-common` and `linux-headers-X-<flavour>`) that clang must see as one; `join` makes that one tree out of
a few dozen symbolic links.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.errors import MissingFeature

_CACHE = Path("var/cache/rankscope/headers")
_WANTED = ("include", "arch")


@dataclass(frozen=True, slots=True)
class Headers:
    """Where bcc shall look. `source` None means bcc's own search finds them."""

    source: Path | None
    release: str
    matches_kernel: bool
    how: str


class NoHeaders(MissingFeature):
    """No kernel headers of any version are installed."""

    help = "Install linux-headers-amd64 (Debian) or linux-headers-generic (Ubuntu); the version need not match."


def find(root: Path = Path("/"), release: str | None = None) -> Headers:
    """Headers for `release` (default: the running kernel), else any installed ones, joined where they are split.

    Raises NoHeaders where there are none.
    """
    release = release or os.uname().release
    given = os.environ.get("BCC_KERNEL_SOURCE")
    if given:
        return Headers(Path(given), given, False, "BCC_KERNEL_SOURCE")
    build = root / "lib/modules" / release / "build"
    if (build / "include/linux").is_dir() or (build.parent / "source/include/linux").is_dir():
        return Headers(None, release, True, "headers of the running kernel")
    if (root / "sys/kernel/kheaders.tar.xz").exists():
        return Headers(None, release, True, "kheaders of the running kernel")
    candidates = sorted((root / "usr/src").glob("linux-headers-*"), key=_version_key, reverse=True)
    for tree in candidates:
        if tree.name.endswith(("-common", "-common-rt")) or not (tree / "include/generated/autoconf.h").exists():
            continue
        if (tree / "include/linux").is_dir():
            return Headers(tree, tree.name, False, f"{tree.name}, not those of the running kernel")
        common = _common_tree(tree)
        if common is not None:
            joined = join((tree, common), root / _CACHE / tree.name)
            return Headers(joined, tree.name, False, f"{tree.name}, joined; not those of the running kernel")
    raise NoHeaders(f"no kernel headers found for {release}, nor any others under {root / 'usr/src'}")


def _version_key(tree: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", tree.name)[:6])


def _common_tree(tree: Path) -> Path | None:
    """The tree that holds what `linux-headers-6.1.0-54-amd64` leaves out: Debian's `…-common`, Ubuntu's bare version."""
    match = re.match(r"(linux-headers-\d[\d.]*-\d+)(-rt)?", tree.name)
    if match is None:
        return None
    base, rt = match.group(1), match.group(2) or ""
    for name in (f"{base}-common{rt}", base):
        if (tree.parent / name / "include/linux").is_dir():
            return tree.parent / name
    return None


def join(trees: Iterable[Path], target: Path) -> Path:
    """One tree that shows the `include` and `arch` of all `trees`, the first one winning; made of links, atomically."""
    if (target / "include/linux").is_dir() and (target / "include/generated/autoconf.h").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    staging = Path(tempfile.mkdtemp(prefix=".joining-", dir=target.parent))
    try:
        staging.chmod(0o755)
        for top in _WANTED:
            _merge([tree / top for tree in trees if (tree / top).is_dir()], staging / top)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        if not (target / "include/linux").is_dir():
            raise
    return target


def _merge(sources: list[Path], target: Path) -> None:
    target.mkdir()
    by_name: dict[str, list[Path]] = {}
    for source in sources:
        for entry in source.iterdir():
            by_name.setdefault(entry.name, []).append(entry)
    for name, entries in by_name.items():
        folders = [entry for entry in entries if entry.is_dir()]
        if len(folders) > 1:
            _merge(folders, target / name)
        else:
            (target / name).symlink_to(entries[0].resolve())
