"""A root of Debian for aarch64, with Python packages and this clone in it, as the guest of an emulated machine has it.

Nothing of another machine runs here: the distribution's packages are unpacked by mmdebstrap without their scripts, pip unpacks wheels of
aarch64, and the clone is copied. What was made stays in the cache until the locks or the list of packages change; the clone is copied
before each boot.
"""

from __future__ import annotations

import compileall
import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kernelkit.architecture import Architecture
from kernelkit.archive import CACHE, source_of_host
from kernelkit.programs_run import run
from labkit.machine.shell import REPOSITORY

SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
_PACKAGES = (
    "bash", "busybox-static", "coreutils", "diffutils", "findutils", "gawk", "gcc", "git", "grep", "gzip", "hostname", "iproute2", "kmod",
    "libc6-dev", "mount", "procps", "python3", "python3-bpfcc", "python3-venv", "sed", "tar", "util-linux",
)  # fmt: skip
_ALTERNATIVES = {"sh": "bash", "cc": "gcc", "awk": "gawk"}  # names that the packages' scripts would make
_MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
_SOURCES = (
    "probes",
    "unwinder",
    "observer",
    "diagnose",
    "scripts/kernelkit",
    "scripts/labkit",
)  # what of the clone runs there
_LOCKS = ("runtime.lock", "dev.lock")
# The newest release whose wheel for aarch64 has no CUDA in it, and what it needs beside what the locks name.
_TORCH = ("torch==2.10.0", "filelock", "fsspec", "mpmath", "networkx", "sympy")
_PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28, 31, 34)))
_HELP = "Check the network; the same command begins again."
_run = partial(run, patience_s=900.0, again=_HELP, install="apt-get install {name}.")


def ready(machine: Architecture, say: Callable[[str], None]) -> None:
    """Make the root of the machine where it is missing or old, and copy this clone into it. LabError."""
    root = machine.root
    stamp, wanted = root.with_name("root.made"), _wanted()
    root.parent.mkdir(parents=True, exist_ok=True)
    CACHE.chmod(0o700)  # what lies there is booted by root
    if not stamp.is_file() or stamp.read_text("ascii") != wanted:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        say(f"aarch64: unpacking {SUITE}, some 500 MB")
        _unpack(root)
        say("aarch64: unpacking Python packages, some 1,500 MB")
        _install(root / machine.repository.relative_to("/") / ".venv")
        stamp.write_text(wanted, "ascii")
    _copy(root, machine.repository)
    _compile(root, *(root / machine.repository.relative_to("/") / name for name in _SOURCES))


def of_aarch64(lock: str) -> str:
    """Turn the markers of a lock round, as pip evaluates them for the machine that it runs on."""
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}
    return re.sub(
        r"(platform_machine\s*==\s*')(\w+)'", lambda found: f"{found[1]}{other.get(found[2], found[2])}'", lock
    )


def _wanted() -> str:
    """What the root is made of, as a hash."""
    parts = (
        SUITE,
        PYTHON,
        *_PACKAGES,
        *_TORCH,
        *((REPOSITORY / "scripts" / name).read_text("utf-8") for name in _LOCKS),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _unpack(root: Path) -> None:
    source = source_of_host()
    signed = ["--keyring", source.keyring] if source.keyring else []
    _run([
        "mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--architectures=arm64", "--format=directory", *signed,
        f"--hook-dir={_MERGED}", '--aptopt=Acquire::Languages "none"', f"--include={','.join(_PACKAGES)}", SUITE, str(root), source.address,
    ])  # fmt: skip
    for name, program in _ALTERNATIVES.items():
        (root / "usr/bin" / name).symlink_to(program)
    _compile(root, root / f"usr/lib/python{PYTHON}", root / "usr/lib/python3")
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n", "ascii"
    )
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n", "ascii")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n", "ascii")


def _install(venv: Path) -> None:
    """What `python3 -m venv` and pip make of an interpreter that cannot run here."""
    site = venv / f"lib/python{PYTHON}/site-packages"
    site.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = true\nversion = {PYTHON}\n", "ascii"
    )
    (venv / "bin/python3").symlink_to(f"../../../../usr/bin/python{PYTHON}")
    (venv / "bin/python").symlink_to("python3")
    pip = [
        sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp",
        f"--python-version={PYTHON}", *(f"--platform={one}" for one in _PLATFORMS), f"--target={site}",
    ]  # fmt: skip
    for name in _LOCKS:
        (venv / name).write_text(of_aarch64((REPOSITORY / "scripts" / name).read_text("utf-8")), "utf-8")
    for wanted in (*(["--require-hashes", "-r", str(venv / name)] for name in _LOCKS), _TORCH):
        _run([*pip, *wanted])
        for program in (site / "bin").glob("*"):
            program.rename(venv / "bin" / program.name)
        shutil.rmtree(site / "bin", ignore_errors=True)  # pip puts no programs into a folder that is there


def _compile(root: Path, *folders: Path) -> None:
    """Compile what the emulated machine would compile at each start, where this interpreter is of its version."""
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        for folder in folders:
            compileall.compile_dir(folder, quiet=2, stripdir=str(root), prependdir="/")


def _copy(root: Path, in_guest: Path) -> None:
    """The files of this clone that git knows or would add, the programs compiled ahead, and what its .venv has of rankscope itself."""
    clone = root / in_guest.relative_to("/")
    listed = _run(["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for old in clone.iterdir():
        if old.name != ".venv":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for name in filter(None, listed.split("\0")):
        source, copied = REPOSITORY / name, clone / name
        if source.exists():
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copied, follow_symlinks=False)
    objects = Path("probes/bpf/compiler/objects")
    if (REPOSITORY / objects).is_dir():
        shutil.copytree(REPOSITORY / objects, clone / objects)
    site = next((REPOSITORY / ".venv/lib").glob("python*/site-packages"))
    guest_site = clone / f".venv/lib/python{PYTHON}/site-packages"
    for own in (*site.glob("__editable__*rankscope*"), *site.glob("rankscope-*.dist-info/*")):
        if own.is_file():
            copied = guest_site / own.relative_to(site)
            copied.parent.mkdir(exist_ok=True)
            copied.write_text(own.read_text("utf-8").replace(str(REPOSITORY), str(in_guest)), "utf-8")
    script = (REPOSITORY / ".venv/bin/rankscope").read_text("utf-8").partition("\n")[2]
    (clone / ".venv/bin/rankscope").write_text(f"#!{in_guest}/.venv/bin/python\n{script}", "utf-8")
    (clone / ".venv/bin/rankscope").chmod(0o755)
