"""Kernel packages from the distribution's archive, by apt with its signed lists, unpacked into a cache.

The address of the archive and its keyring come from the host's own apt sources. The cache holds, for each kernel, `vmlinuz`, the
modules that the first file system needs in the order of loading, and `kernel.json`, which is written last: without it the kernel
is fetched again, from the last whole package on.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from kernelkit.architecture import Architecture
from kernelkit.kernels import Kernel, newest, parts
from kernelkit.programs_run import run
from labkit.machine.shell import LabError

CACHE = Path("/var/cache/rankscope/kernels")
# The root of the guest is a 9p share below an overlay; and what a host loads by itself when it is asked for its connections, or for
# the links between namespaces and the shapers of the kernel tests.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "tcp_diag", "veth", "sch_tbf")
_HELP = "Check the network and the sources of apt; the same command goes on."
_run = partial(run, patience_s=480.0, again=_HELP, install="Run scripts/setup --lab.")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the archive is, and the keyring that signs it; without one apt takes those it trusts."""

    address: str
    keyring: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A kernel in the cache."""

    package: str
    version: str  # of the package
    release: str  # as `uname -r` prints it
    folder: str

    @property
    def image(self) -> Path:
        """The kernel itself."""
        return Path(self.folder, "vmlinuz")

    def modules(self) -> list[Path]:
        """Modules in the order of loading."""
        return sorted(Path(self.folder, "modules").iterdir())


def cached(kernel: Kernel, machine: Architecture, cache: Path = CACHE) -> Fetched | None:
    """Find a kernel that was fetched before, with the modules that are wanted today."""
    folder = cache / machine.name / kernel.name
    try:
        about = json.loads((folder / "kernel.json").read_text("utf-8"))
        return Fetched(**about, folder=str(folder)) if about.pop("modules", None) == [*MODULES] else None
    except (OSError, ValueError, TypeError):
        return None


def fetch(kernel: Kernel, machine: Architecture, say: Callable[[str], None], cache: Path = CACHE) -> Fetched:
    """Take a kernel from the cache, else download it. LabError where the archive does not have it or cannot be reached."""
    if found := cached(kernel, machine, cache):
        return found
    folder = cache / machine.name / kernel.name
    folder.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o700)  # what lies there is booted by root
    apt = _Apt(kernel.suite, machine.debian, folder / "apt", source_of_host())
    say(f"{kernel.name}: reading the list of {kernel.suite}")
    apt.update()
    package = newest(kernel, apt.names(), machine.debian)
    if package is None:
        raise LabError(f"{kernel.suite} has no kernel {kernel.name} for {machine.debian}", _HELP)
    unpacked = folder / "unpacked"
    for name in (package, *parts(apt.field(package, "Depends"))):
        say(f"{kernel.name}: downloading {name}, {int(apt.field(name, 'Size')) / 1e6:.0f} MB")
        apt.unpack(name, unpacked)
    release = package.removeprefix("linux-image-")
    _keep(unpacked, release, folder)
    about = Fetched(package, apt.field(package, "Version"), release, str(folder))
    (folder / "kernel.json").write_text(
        json.dumps({k: v for k, v in asdict(about).items() if k != "folder"} | {"modules": MODULES}) + "\n", "utf-8"
    )
    shutil.rmtree(unpacked)
    shutil.rmtree(folder / "apt")
    return about


def source_of_host(root: Path = Path("/")) -> Source:
    """Find the archive of this distribution in the host's apt sources. LabError where there is none."""
    folder = root / "etc/apt"
    for path in sorted(folder.glob("sources.list.d/*.sources")):
        if source := parse_stanzas(path.read_text("utf-8", "replace")):
            return source
    for path in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))):
        if path.is_file() and (source := parse_lines(path.read_text("utf-8", "replace"))):
            return source
    raise LabError("apt has no source of Debian's packages here", "Kernels are fetched on Debian hosts alone.")


def parse_stanzas(text: str) -> Source | None:
    """Parse a file of the deb822 kind: the first source of Debian's own suites."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = {key.lower(): value.strip() for key, value in re.findall(r"^([\w-]+):(.*)$", stanza, re.MULTILINE)}
        address = (fields.get("uris") or "").split()[:1]
        if "deb" in fields.get("types", "").split() and address and _is_debian(address[0], fields.get("suites", "")):
            keyring = fields.get("signed-by", "")
            return Source(address[0], keyring if keyring.startswith("/") else "")
    return None


def parse_lines(text: str) -> Source | None:
    """Parse a file of the one-line kind: the first source of Debian's own suites."""
    for options, address, suite in re.findall(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)", text, re.MULTILINE):
        if _is_debian(address, suite):
            keyring = re.search(r"signed-by=(/\S+)", options)
            return Source(address, keyring[1] if keyring else "")
    return None


def _is_debian(address: str, suites: str) -> bool:
    return address.rstrip("/").endswith("/debian") and "-security" not in suites


def _keep(unpacked: Path, release: str, folder: Path) -> None:
    """Copy the image and the modules into the cache."""
    images = (unpacked / f"boot/vmlinuz-{release}", unpacked / f"usr/lib/modules/{release}/vmlinuz")
    image = next((path for path in images if path.is_file()), None)
    if image is None:
        raise LabError(f"the packages in {unpacked} hold no kernel {release}", "Please report this.")
    if not (unpacked / "lib").exists():
        (unpacked / "lib").symlink_to("usr/lib")
    _run(["depmod", "-b", str(unpacked), release])
    kept = folder / "modules"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    seen: dict[str, None] = {}
    for name in MODULES:
        said = _run(["modprobe", "-D", "-d", str(unpacked), "-S", release, name])
        seen.update(dict.fromkeys(re.findall(r"^insmod (\S+)", said, re.MULTILINE)))
    for number, path in enumerate(map(Path, seen)):
        content = path.read_bytes()
        plain = lzma.decompress(content) if path.suffix == ".xz" else content
        (kept / f"{number:02}-{path.name.removesuffix('.xz')}").write_bytes(plain)
    shutil.copyfile(image, folder / "vmlinuz")


class _Apt:
    """One suite of the archive, with lists of its own: the host's stay as they are."""

    def __init__(self, suite: str, debian: str, folder: Path, source: Source) -> None:
        self.suite = suite
        self.folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        signed = f" signed-by={source.keyring}" if source.keyring else ""
        (folder / "sources.list").write_text(f"deb [arch={debian}{signed}] {source.address} {suite} main\n", "utf-8")
        given = {
            "Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null", "Dir::State::Lists": folder / "lists",
            "Dir::State::status": "/dev/null", "Dir::Cache": folder / "cache", "APT::Architecture": debian,
            "APT::Architectures": debian, "APT::Sandbox::User": "root", "Acquire::Languages": "none", "Acquire::Retries": "3",
        }  # fmt: skip
        self.options = [word for key, value in given.items() for word in ("-o", f"{key}={value}")]

    def update(self) -> None:
        """Read the suite's lists, whose signature apt checks."""
        _run(["apt-get", *self.options, "-o", "APT::Update::Error-Mode=any", "update", "-qq"])

    def names(self) -> list[str]:
        """List the suite's packages."""
        return _run(["apt-cache", *self.options, "pkgnames", "linux-"]).split()

    def field(self, package: str, name: str) -> str:
        """Read one field of a package's entry; empty where it has none."""
        said = _run(["apt-cache", *self.options, "show", "--no-all-versions", package])
        match = re.search(rf"^{name}: (.*)$", said, re.MULTILINE)
        return match[1] if match else ""

    def unpack(self, package: str, into: Path) -> None:
        """Download a package, which apt compares with the signed list, and unpack it."""
        done = into.parent / "apt" / f"{package}.unpacked"
        if done.exists():
            return
        archives = self.folder / "packages" / package
        shutil.rmtree(archives, ignore_errors=True)
        archives.mkdir(parents=True)
        _run(["apt-get", *self.options, "download", "-qq", package], archives)
        for path in archives.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(path), str(into)])
            path.unlink()
        done.touch()
