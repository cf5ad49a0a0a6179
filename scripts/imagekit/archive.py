"""Pack a root as an OCI image, and the image as one archive: a tar of an OCI layout."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, cast

from imagekit.roots import Config

_TYPE = "application/vnd.oci.image"
_NAME = "org.opencontainers.image.ref.name"
_PART = 1 << 20


@dataclass(slots=True)
class _Digested:
    """A stream that passes on what is written, and its digest."""

    to: IO[bytes]
    digest: Any
    size: int = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.to.write(data)

    def flush(self) -> None:
        self.to.flush()


def pack(root: Path, config: Config, out: Path, name: str, machine: str, unix: int) -> str:
    """Write the archive; return the digest of the image's manifest.

    `name`: repository and tag. `machine`: amd64 or arm64. `unix`: no file is said to be newer.
    """
    work, part = out.with_suffix(".layer"), out.with_suffix(".part")
    try:
        digest, size, plain = _layer(root, work, unix)
        layers = [{"mediaType": f"{_TYPE}.layer.v1.tar+gzip", "digest": digest, "size": size}]
        blobs = {digest: work}
        described = _blob(_configuration(config, machine, unix, plain))
        manifest = _blob(
            {
                "schemaVersion": 2,
                "mediaType": f"{_TYPE}.manifest.v1+json",
                "config": {"mediaType": f"{_TYPE}.config.v1+json", **_said(described)},
                "layers": layers,
            }
        )
        index = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.index.v1+json",
            "manifests": [
                {
                    "mediaType": f"{_TYPE}.manifest.v1+json",
                    **_said(manifest),
                    "platform": {"architecture": machine, "os": "linux"},
                    # containerd names an image by its own annotation, skopeo and Podman by OCI's.
                    "annotations": {"io.containerd.image.name": name, _NAME: name.rpartition(":")[2]},
                }
            ],
        }
        with tarfile.open(part, "w") as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}', unix)
            _add(archive, "index.json", json.dumps(index, sort_keys=True).encode(), unix)
            for data in (manifest, described):
                _add(archive, f"blobs/sha256/{_hash(data)}", data, unix)
            for of_layer, file in blobs.items():
                info = _plain_info(f"blobs/{of_layer.replace(':', '/')}", file.stat().st_size, unix)
                with file.open("rb") as stream:
                    archive.addfile(info, stream)
        part.rename(out)
        return f"sha256:{_hash(manifest)}"
    finally:
        work.unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def _configuration(config: Config, machine: str, unix: int, layer: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": machine,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in config.env.items()],
            "Entrypoint": list(config.entrypoint),
            "Cmd": list(config.cmd),
            "WorkingDir": config.workdir,
            "Labels": config.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": created, "created_by": "scripts/package --image, without a builder"}],
    }


def _layer(root: Path, out: Path, unix: int) -> tuple[str, int, str]:
    """Write all of a root as one compressed layer; return its digest and size, and the digest of what was compressed."""
    with out.open("wb") as file:
        packed = _Digested(file, hashlib.sha256())
        with gzip.GzipFile("", "wb", 6, cast(IO[bytes], packed), 0) as zipped:
            plain = _Digested(cast(IO[bytes], zipped), hashlib.sha256())
            with tarfile.open(
                fileobj=cast(IO[bytes], plain), mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PART
            ) as archive:
                for path in _walk(root):
                    _add_file(archive, path, str(path.relative_to(root)), unix)
    return f"sha256:{packed.digest.hexdigest()}", packed.size, f"sha256:{plain.digest.hexdigest()}"


def _walk(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, by name, a folder before what is in it."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _add_file(archive: tarfile.TarFile, path: Path, name: str, unix: int) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISSOCK(mode) or stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        return  # a runtime makes devices by itself
    info = archive.gettarinfo(path, name)
    info.uname = info.gname = ""
    info.mtime = min(int(info.mtime), unix)
    if info.isreg():
        with path.open("rb") as stream:
            archive.addfile(info, stream)
    else:
        archive.addfile(info)


def _blob(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _said(data: bytes) -> dict[str, Any]:
    return {"digest": f"sha256:{_hash(data)}", "size": len(data)}


def _plain_info(name: str, size: int, unix: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, unix, 0o644
    return info


def _add(archive: tarfile.TarFile, name: str, data: bytes, unix: int) -> None:
    archive.addfile(_plain_info(name, len(data), unix), io.BytesIO(data))
