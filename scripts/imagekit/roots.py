"""Carry out the stages of a Dockerfile, each in a root of its own. As root, on Debian or a host with debootstrap."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagekit.dockerfile import Stage, Step

# Tags of Debian's image, and the release that each is of.
RELEASES = {"12": "bookworm", "13": "trixie"}
_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?debian:(\d+)(?:[.]\d+)?-slim")
# What Debian's slim images leave out too.
_LEFT_OUT = (
    "usr/share/man/*",
    "usr/share/locale/*",
    "usr/share/info/*",
    "var/cache/*",
    "var/lib/apt/lists/*",
    "var/log/*",
)
# In a mount namespace of its own: nothing stays mounted, and this host sees nothing of it.
_INSIDE = """
mount --rbind "$0" "$0" && cd "$0"
for folder in proc sys dev; do mkdir -p ./$folder && mount --rbind /$folder "./$folder"; done
mount -t tmpfs none ./run
exec chroot . /usr/bin/env -i "$@"
"""
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "DEBIAN_FRONTEND": "noninteractive",
}


class BuildError(Exception):
    """Why there is no root."""


@dataclass(slots=True)
class Config:
    """What the last stage says of a container: as in an image's configuration."""

    env: dict[str, str] = field(default_factory=lambda: {"PATH": _ENVIRONMENT["PATH"]})
    labels: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = "/"


def release_of(image: str) -> str:
    """Return Debian's release of an image's name. Raises BuildError for any other image."""
    match = _IMAGE.fullmatch(image)
    if match is None or match[1] not in RELEASES:
        known = ", ".join(f"debian:{number}-slim" for number in RELEASES)
        raise BuildError(f"{image}: without a builder the base is made by debootstrap, and that is {known}")
    return RELEASES[match[1]]


def build(stages: Sequence[Stage], context: Path, work: Path, mirror: str = "") -> tuple[Path, Config]:
    """Carry out all stages; return the root of the last one and its configuration. Raises BuildError."""
    roots: dict[str, Path] = {}
    for number, stage in enumerate(stages):
        root = work / f"stage-{number}"
        _copy_tree(roots.get(stage.base) or _base(stage.base, work, mirror), root)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        config = Config()
        for step in stage.steps:
            _do(step, root, config, context, roots)
        if stage.name:
            roots[stage.name] = root
    (root / "etc/resolv.conf").unlink()
    return root, config


def _base(image: str, work: Path, mirror: str) -> Path:
    """Make the root of an image; once for all stages."""
    release = release_of(image)
    root = work / release
    if root.exists():
        return root
    made = root.with_suffix(".part")
    # Its own mounts, below the root that it makes, are nobody else's.
    command = [
        "unshare",
        "--mount",
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        release,
        str(made),
    ]
    _call(command + ([mirror] if mirror else []))
    if mirror:
        security = mirror.rsplit("/debian", 1)[0] + "/debian-security"
        lines = (
            f"deb {mirror} {release} main",
            f"deb {mirror} {release}-updates main",
            f"deb {security} {release}-security main",
        )
        (made / "etc/apt/sources.list").write_text("".join(f"{line}\n" for line in lines))
    for pattern in _LEFT_OUT:
        _remove(made, pattern)
    for file in made.glob("usr/share/doc/**/*"):
        if file.name != "copyright" and (file.is_symlink() or not file.is_dir()):
            file.unlink()
    made.rename(root)
    return root


def _do(step: Step, root: Path, config: Config, context: Path, roots: Mapping[str, Path]) -> None:
    if step.kind == "RUN":
        run(root, step.words[0], {**config.env, **step.args}, config.workdir)
    elif step.kind == "COPY":
        source, *names, target = step.words
        if source and source not in roots:
            raise BuildError(f"COPY --from={source}: there is no such stage")
        copy(roots[source] if source else context, names, root, target)
    elif step.kind == "LABEL":
        config.labels[step.words[0]] = step.words[1]
    elif step.kind == "ENV":
        config.env[step.words[0]] = step.words[1]
    elif step.kind == "ENTRYPOINT":
        config.entrypoint, config.cmd = step.words, ()
    elif step.kind == "CMD":
        config.cmd = step.words
    elif step.kind == "WORKDIR":
        config.workdir = step.words[0]
        (root / step.words[0].lstrip("/")).mkdir(parents=True, exist_ok=True)


def run(root: Path, command: str, environment: Mapping[str, str], folder: str = "/") -> None:
    """Run a command line in a root. Raises BuildError."""
    given = [f"{name}={value}" for name, value in {**_ENVIRONMENT, **environment}.items()]
    # `env -C` is the folder inside; what it prints goes where errors do.
    _call(["unshare", "--mount", "sh", "-ec", _INSIDE, str(root), "-C", folder, *given, "/bin/sh", "-c", command])


def copy(source: Path, names: Sequence[str], root: Path, target: str) -> None:
    """Copy as COPY does: a folder's content, not the folder itself; a target that ends in / is a folder. Raises BuildError."""
    place = root / target.lstrip("/")
    for name in names:
        found = [source] if name == "." else sorted(source.glob(name.lstrip("/")))
        if not found:
            raise BuildError(f"COPY {name}: there is no such file")
        for one in found:
            if one.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                _call(["cp", "-a", "--no-preserve=ownership", f"{one}/.", str(place)])
            else:
                folder = place if target.endswith("/") or len(names) > 1 else place.parent
                folder.mkdir(parents=True, exist_ok=True)
                _call(["cp", "-a", "--no-preserve=ownership", str(one), str(folder if folder is place else place)])


def _remove(root: Path, pattern: str) -> None:
    for path in root.glob(pattern):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _copy_tree(source: Path, target: Path) -> None:
    _call(["cp", "-a", "--reflink=auto", str(source), str(target)])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-12:])
        raise BuildError(f"{' '.join(command)[-200:]}: exit code {done.returncode}\n{last}")
