"""Kernel headers for bcc's compiler: found, unpacked, or joined from what the distribution splits.

bcc needs headers only to compile its own helpers; our programs touch no kernel structure through them (DESIGN.md,
"Rules for the kernel side"), so headers of another kernel version do. Debian ships two trees
(`linux-headers-X-common` and `linux-headers-X-<flavour>`) that clang must see as one; `join` makes that one tree out of
a few dozen symbolic links. Headers that the kernel itself brings (kheaders.tar.xz) are unpacked here, as bcc would do it into a folder
of /tmp that anybody can have made before.

What root compiles and loads is made of these: so they lie in /var/cache/rankscope/headers, root's alone; where others could have
written there, they are not used.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.bpf import cache
from rankscope.probes.bpf.cache import CacheRefused
from rankscope.probes.errors import MissingFeature

_CACHE = Path("var/cache/rankscope/headers")
_KHEADERS = Path("sys/kernel/kheaders.tar.xz")
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
    if (root / _KHEADERS).exists():
        unpacked = _in_own_folder(root, lambda place: unpack(root / _KHEADERS, place / f"kheaders-{release}"))
        return Headers(unpacked, release, True, "kheaders of the running kernel")
    candidates = sorted((root / "usr/src").glob("linux-headers-*"), key=_version_key, reverse=True)
    for tree in candidates:
        if tree.name.endswith(("-common", "-common-rt")) or not (tree / "include/generated/autoconf.h").exists():
            continue
        if (tree / "include/linux").is_dir():
            return Headers(tree, tree.name, False, f"{tree.name}, not those of the running kernel")
        common = _common_tree(tree)
        if common is not None:
            joined = _in_own_folder(root, lambda place: join((tree, common), place / tree.name))  # noqa: B023 - called at once
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


def _in_own_folder(root: Path, make: Callable[[Path], Path]) -> Path:
    """What `make` made in the folder that is root's alone. NoHeaders where others can have written there."""
    try:
        (root / _CACHE).parents[1].mkdir(mode=0o755, parents=True, exist_ok=True)
        _close_to_others(root / _CACHE)
        with cache.own_folder(_CACHE, root, make=True):
            return make(root / _CACHE)
    except (CacheRefused, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NoHeaders(f"kernel headers cannot be kept in {root / _CACHE}: {reason}") from error


def _close_to_others(folder: Path) -> None:
    """Earlier versions let others read it."""
    with contextlib.suppress(FileNotFoundError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_uid == os.geteuid() and stat.S_IMODE(os.fstat(opened).st_mode) == 0o755:
                os.fchmod(opened, 0o700)
        finally:
            os.close(opened)


def join(trees: Iterable[Path], target: Path) -> Path:
    """One tree that shows the `include` and `arch` of all `trees`, the first one winning; made of links, atomically."""

    def fill(staging: Path) -> None:
        for top in _WANTED:
            _merge([tree / top for tree in trees if (tree / top).is_dir()], staging / top)

    return _made(target, fill)


def unpack(archive: Path, target: Path) -> Path:
    """The tree in the kernel's own archive, which is as trustworthy as the kernel. 60 MB."""

    def fill(staging: Path) -> None:
        with tarfile.open(archive, "r:xz") as opened:
            for member in opened:
                if member.isdir() or member.isfile():  # there are no links in it
                    opened.extract(member, staging, set_attrs=False)

    try:
        return _made(target, fill)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise NoHeaders(f"{archive} cannot be unpacked: {error}") from error


def _made(target: Path, fill: Callable[[Path], None]) -> Path:
    """The tree that `fill` makes, whole or not at all; what is there is taken as it is."""
    if (target / "include/linux").is_dir() and (target / "include/generated/autoconf.h").exists():
        return target
    staging = Path(tempfile.mkdtemp(prefix=".joining-", dir=target.parent))
    try:
        fill(staging)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    except BaseException:
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
