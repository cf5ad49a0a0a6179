"""The image: what its Dockerfile says, which builder is asked, and the archive that is made where there is none."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imagekit import roots
from imagekit.archive import pack
from imagekit.dockerfile import DockerfileError, Step, stages

REPOSITORY = Path(__file__).parents[3]
DOCKERFILE = (REPOSITORY / "scripts/deploy/image/Dockerfile").read_text()
BUILDER = REPOSITORY / "scripts/packagekit/image"


def test_the_image_starts_rankscope_on_a_base_that_stays_what_it_is() -> None:
    build, image = stages(DOCKERFILE, {"VERSION": "1.2.3", "PACKAGES": "curl kubectl"})
    assert build.base == image.base == "docker.io/library/debian:13-slim" and (build.name, image.name) == ("build", "")
    assert roots.release_of(image.base) == "trixie"
    of_kind = {step.kind: step.words for step in image.steps}
    assert (of_kind["ENTRYPOINT"], of_kind["CMD"]) == (("rankscope",), ("--help",))
    labels = {step.words[0]: step.words[1] for step in image.steps if step.kind == "LABEL"}
    assert (
        labels["org.opencontainers.image.version"] == "1.2.3"
        and labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    )
    # Nothing of the first stage but what it made, and no compiler in either.
    assert [step.words for step in image.steps if step.kind == "COPY"] == [
        ("build", "/opt/rankscope", "/opt/rankscope")
    ]
    said = " ".join(step.words[0] for stage in (build, image) for step in stage.steps if step.kind == "RUN")
    assert (
        "--require-hashes" in said
        and "--no-index" in said
        and not re.search(r"\b(gcc|clang|bpfcc|build-essential)\b", said)
    )
    assert [step.args["PACKAGES"] for step in image.steps if step.kind == "RUN"] == ["curl kubectl"] * 2


def test_a_dockerfile_is_read_line_by_line() -> None:
    text = """
    # a comment
    ARG BASE=debian:13-slim
    FROM $BASE AS first
    ARG WHAT=one
    RUN echo a && \\
        # between
        echo ${WHAT}
    FROM first
    ENV A="b c"
    COPY --from=first /x /y/ /z/
    WORKDIR /w
    """
    first, last = stages(text, {"WHAT": "two"})
    assert first.steps == (Step("RUN", ("echo a && echo ${WHAT}",), {"WHAT": "two"}),)
    assert last.base == "first" and last.steps == (
        Step("ENV", ("A", "b c")), Step("COPY", ("first", "/x", "/y/", "/z/")), Step("WORKDIR", ("/w",)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["VOLUME /x", "ADD x y", "RUN --mount=type=secret x", 'RUN ["x"]', "COPY x", "COPY --chmod=1 x y", "ENTRYPOINT x",
     "LABEL a", "COPY $X y", "ARG a b=c", "FROM a b"],
)  # fmt: skip
def test_what_is_not_known_is_an_error_and_no_guess(line: str) -> None:
    with pytest.raises(DockerfileError):
        stages(f"FROM debian:13-slim\n{line}\n", {})
    with pytest.raises(DockerfileError):
        stages(f"{line}\n", {})


@pytest.mark.parametrize(
    "image", ["alpine:3", "debian:latest", "debian:13", "registry.example.com/debian:13-slim", "debian:9-slim"]
)
def test_a_base_that_debootstrap_cannot_make_is_refused(image: str) -> None:
    with pytest.raises(roots.BuildError, match="debian:13-slim"):
        roots.release_of(image)


def of_version(lock: Path, version: str) -> str:
    """What scripts/package takes of a lock; apart, as pip changes which distutils a process has."""
    command = [sys.executable, "-m", "imagekit.lock", str(lock), version]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_lock_is_that_of_the_python_of_the_image(tmp_path: Path) -> None:
    lock = tmp_path / "image.lock"
    text = (
        "a==1 \\\n    --hash=sha256:1\nb==1 ; python_full_version < '3.12' \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n"
        "b==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:4\nc==1 ; sys_platform == 'win32' \\\n    --hash=sha256:5\n"
    )
    lock.write_text(text)
    assert of_version(lock, "3.13") == "a==1 \\\n    --hash=sha256:1\nb==2 \\\n    --hash=sha256:4\n"
    assert "b==1 \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n" in of_version(lock, "3.11")


def test_files_are_copied_as_copy_does(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    (source / "folder/inner").mkdir(parents=True)
    for name in ("one.whl", "two.whl", "folder/inner/three", ".hidden"):
        (source / name).write_text(name)
    (source / "folder/link").symlink_to("inner/three")
    root.mkdir()
    roots.copy(source, ["."], root, "/all/")
    roots.copy(source, ["*.whl"], root, "/wheels/")
    roots.copy(source, ["folder"], root, "/content")
    roots.copy(source, ["one.whl"], root, "/etc/named")
    made = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert made >= {
        "all/.hidden",
        "all/folder/inner/three",
        "wheels/one.whl",
        "wheels/two.whl",
        "content/inner/three",
        "etc/named",
    }
    assert (root / "content/link").is_symlink()
    with pytest.raises(roots.BuildError, match="there is no such file"):
        roots.copy(source, ["three.whl"], root, "/x/")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/tool").write_text("#!/bin/sh\n")
    (folder / "usr/bin/tool").chmod(0o4755)
    (folder / "bin").symlink_to("usr/bin")
    os.link(folder / "usr/bin/tool", folder / "usr/bin/other")
    os.mkfifo(folder / "usr/pipe")
    os.utime(folder / "usr/bin/tool", (2e9, 2e9))
    return folder


def blobs(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The index of an OCI archive, and its blobs by digest, each held against its name."""
    with tarfile.open(archive) as tar:
        found = {one.name: (tar.extractfile(one) or io.BytesIO()).read() for one in tar}
    assert json.loads(found.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(found.pop("index.json"))
    by_digest = {f"sha256:{name.rpartition('/')[2]}": data for name, data in found.items()}
    assert all(f"sha256:{hashlib.sha256(data).hexdigest()}" == digest for digest, data in by_digest.items())
    return index, by_digest


def test_an_archive_is_an_image_whose_digests_are_right(root: Path, tmp_path: Path) -> None:
    config = roots.Config({"PATH": "/bin"}, {"title": "x"}, ("rankscope",), ("--help",))
    digest = pack(root, config, tmp_path / "image.tar", "localhost/rankscope:1.0", "amd64", 1_700_000_000)
    index, found = blobs(tmp_path / "image.tar")
    (entry,) = index["manifests"]
    assert entry["digest"] == digest and entry["annotations"]["io.containerd.image.name"] == "localhost/rankscope:1.0"
    manifest = json.loads(found[digest])
    said = json.loads(found[manifest["config"]["digest"]])
    assert said["config"]["Entrypoint"] == ["rankscope"] and said["config"]["Labels"] == {"title": "x"}
    (layer,) = manifest["layers"]
    packed = found[layer["digest"]]
    plain = gzip.decompress(packed)
    assert len(packed) == layer["size"] and said["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(plain).hexdigest()}"
    ]
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        members = {one.name: one for one in tar}
    assert members["bin"].issym() and members["bin"].linkname == "usr/bin"
    tool = members["usr/bin/tool"]
    assert {members["usr/bin/other"].islnk(), tool.islnk()} == {True, False} and members["usr/bin/other"].mode == 0o4755
    assert members["usr/pipe"].isfifo() and max(one.mtime for one in members.values()) <= 1_700_000_000
    # The same root again: the same bytes.
    pack(root, config, tmp_path / "again.tar", "localhost/rankscope:1.0", "amd64", 1_700_000_000)
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "image.tar").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tar", "image.tar", "root"]


def call(tools: Path, out: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Ask for an image on a host that has only these builders."""
    tools.mkdir()
    for tool in ("bash", "cat", "date", "dirname", "head", "mktemp", "rm", "sed", "tail", "timeout", "uname"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    for name, text in programs.items():
        (tools / name).write_text(f'#!/bin/bash\necho "{name} $*" >>"$ASKED"\n{text}\n')
        (tools / name).chmod(0o755)
    environment = {"PATH": str(tools), "ASKED": str(out / "asked"), "SOURCE_DATE_EPOCH": "1700000000"}
    command = ["/bin/bash", str(BUILDER), str(out / "context"), "1.0", "abc", "curl kubectl", str(out)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_builder_that_works_is_asked_and_one_that_does_not_is_passed_over(tmp_path: Path) -> None:
    # GIVEN a docker client without a daemon, and a podman
    done = call(tmp_path / "bin", tmp_path, docker="exit 1", podman="exit 0")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rankscope-1\.0-\w+\.oci\.tar\n", done.stdout)
    _, built, saved = (tmp_path / "asked").read_text().splitlines()
    assert "--tag localhost/rankscope:1.0 " in built and "--build-arg PACKAGES=curl kubectl " in built
    assert "CREATED=2023-11-14T22:13:20Z" in built and built.endswith(str(tmp_path / "context"))
    assert "oci-archive" in saved and saved.endswith("localhost/rankscope:1.0")


def test_why_a_builder_failed_is_told(tmp_path: Path) -> None:
    done = call(tmp_path / "bin", tmp_path, buildah='[ "$1" = info ] || { echo "no space left"; exit 3; }')
    assert done.returncode != 0 and "no space left" in done.stderr and not done.stdout


def test_a_host_without_any_of_them_is_told_what_to_install(tmp_path: Path) -> None:
    done = call(tmp_path / "bin", tmp_path, docker="exit 1")
    assert done.returncode == 69 and not done.stdout
    said = done.stderr.splitlines()
    assert "run in a root of their own" in said[0] and "apt-get install buildah, or debootstrap" in said[1]
