"""scripts/setup without a network: all of it comes from one folder that only root writes, and --fetch fills that folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from setup_clones import Host, make_clone, make_deb, program, set_up

NEEDED = {"python3-bpfcc": "1", "python3-venv": "1", "iproute2": "1"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as which packages are installed")
by_apt = pytest.mark.skipif(not all(map(shutil.which, ("apt-get", "dpkg-deb"))), reason="this is no Debian or Ubuntu")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "clone")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One that has what scripts/setup needs, but bcc."""
    return Host(tmp_path / "host", {name: version for name, version in NEEDED.items() if name != "python3-bpfcc"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where packages are taken from."""
    made = tmp_path / "of a #1 [stick]"
    made.mkdir()
    return made


@as_root
@by_apt
def test_a_missing_distribution_package_comes_from_the_folder(clone: Path, host: Host, folder: Path) -> None:
    # GIVEN a package, what it depends on, and an older one of something that is there
    make_deb(folder, "python3-bpfcc", "1:2", depends="libbpfcc (>= 1:2), iproute2")
    make_deb(folder, "libbpfcc", "1:2")
    make_deb(folder, "iproute2", "0.9")
    code, asked, said = set_up(clone, "--offline", str(folder), "--runtime", environment=host.environment)
    assert code == 0 and len(asked) == 2, said
    assert (host.version("python3-bpfcc"), host.version("libbpfcc"), host.version("iproute2")) == ("1:2", "1:2", "1")
    # THEN no source of the host's was asked, and nothing is done again
    (line,) = host.apt()
    assert "Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null" in line
    assert set_up(clone, "--offline", str(folder), "--runtime", environment=host.environment)[:2] == (0, [])
    assert len(host.apt()) == 1


@as_root
@by_apt
@pytest.mark.parametrize("there", ["nothing", "something else", "not what it depends on"])
def test_what_the_folder_lacks_is_told(clone: Path, host: Host, folder: Path, there: str) -> None:
    if there == "something else":
        make_deb(folder, "libbpfcc")
    elif there == "not what it depends on":
        make_deb(folder, "python3-bpfcc", depends="libbpfcc")
    code, asked, said = set_up(clone, "--offline", str(folder), "--runtime", environment=host.environment)
    assert (code, asked) == (69, []) and "apt-get could not install: python3-bpfcc\n" in said
    assert str(folder) in said and ("libbpfcc but it is not installable" in said) == (there == "not what it depends on")


@as_root
@by_apt
@pytest.mark.parametrize("where", ["the folder", "above it"])
def test_a_link_that_is_turned_after_it_was_looked_at_changes_nothing(
    clone: Path, host: Host, folder: Path, tmp_path: Path, where: str
) -> None:
    # GIVEN a link of somebody's to a sound folder, who turns it as soon as setup has begun
    make_deb(folder, "python3-bpfcc", "1")
    theirs = tmp_path / "theirs" / folder.name
    theirs.mkdir(parents=True)
    make_deb(theirs, "python3-bpfcc", "666")
    link = tmp_path / "link"
    good, bad, given = (
        (folder, theirs, link) if where == "the folder" else (tmp_path, theirs.parent, link / folder.name)
    )
    link.symlink_to(good)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    host.before_each_query(f"ln -sfn '{bad}' '{link}'")
    code, asked, said = set_up(clone, "--offline", str(given), "--runtime", environment=host.environment)
    assert code == 0 and host.version("python3-bpfcc") == "1", said
    assert link.readlink() == bad
    assert [line.partition(": install ")[0] for line in asked] == [
        f"1 {folder.as_uri()}".replace("%5B", "[").replace("%5D", "]")
    ] * 2


@as_root
@by_apt
def test_a_host_that_only_runs_it_needs_no_compiler(clone: Path, folder: Path, tmp_path: Path) -> None:
    # GIVEN a host that has everything but gcc
    Host(tmp_path / "host", NEEDED)
    programs = tmp_path / "programs"
    programs.mkdir()
    for path in (file for place in ("/usr/sbin", "/usr/bin") for file in Path(place).iterdir() if file.name != "gcc"):
        if not (programs / path.name).is_symlink():
            (programs / path.name).symlink_to(path)
    path = {"PATH": f"{tmp_path}/host/bin:{programs}"}
    code, _, said = set_up(clone, "--offline", str(folder), "--runtime", environment=path)
    assert code == 0 and "distribution packages: all there" in said
    # THEN it is its tests that do
    code, _, said = set_up(clone, "--offline", str(folder), environment=path)
    assert code == 69 and "apt-get could not install: gcc libc6-dev\n" in said


@as_root
@by_apt
def test_a_folder_is_taken_from_where_one_stands(clone: Path, tmp_path: Path) -> None:
    # GIVEN a shell that looks for folders elsewhere first, where there is another clone
    make_clone(tmp_path / "elsewhere/clone")
    environment = {**Host(tmp_path / "host", NEEDED).environment, "CDPATH": str(tmp_path / "elsewhere")}
    stands = clone.parent
    for place in (stands, clone, stands / "elsewhere"):
        (place / "packages").mkdir()
    code, asked, said = set_up(clone, "--offline", "packages", "--runtime", cwd=stands, environment=environment)
    assert code == 0 and len(asked) == 2 and all(line.startswith(f"1 {stands}/packages: ") for line in asked), said
    (clone / ".venv/rankscope-setup").unlink()
    code, asked, said = set_up(clone, "--fetch", "new/packages", "--runtime", cwd=stands, environment=environment)
    assert code == 0 and f"-d {stands}/new/packages " in asked[-1], said
    assert (stands / "new/packages").is_dir() and not (clone / "new").exists()


@pytest.fixture
def open_handed() -> Iterator[None]:
    """A shell whose files anybody may write."""
    before = os.umask(0)
    yield
    os.umask(before)


@as_root
@by_apt
@pytest.mark.usefixtures("open_handed")
@pytest.mark.parametrize("runtime", [True, False])
def test_what_is_installed_is_fetched_by_the_same_hashes(clone: Path, tmp_path: Path, runtime: bool) -> None:
    environment = Host(tmp_path / "host", NEEDED).environment
    folder = tmp_path / "fetched"
    code, asked, said = set_up(clone, "--fetch", str(folder), *["--runtime"] * runtime, environment=environment)
    assert code == 0 and f"{folder} has what scripts/setup --offline needs" in said
    assert folder.stat().st_mode & 0o777 == 0o755
    locks = ["runtime.lock"] if runtime else ["runtime.lock", "dev.lock"]
    assert [line.partition(": ")[2] for line in asked if "download" in line] == [
        f"download --require-hashes --only-binary :all: -d {folder} -r scripts/{lock}" for lock in locks
    ]
    # THEN one that is set up already can fetch, too; with --offline it cannot
    assert len(set_up(clone, "--fetch", str(folder), *["--runtime"] * runtime, environment=environment)[1]) == len(
        locks
    )
    assert set_up(clone, "--fetch", str(folder), "--offline", str(folder), environment=environment)[0] == 64


def publish(index: Path, name: str) -> str:
    """Put a package into an index; its line in a lock."""
    place = index / name.replace("_", "-")
    place.mkdir(parents=True)
    file = place / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")
    (place / "index.html").write_text(f'<a href="{file.name}">{file.name}</a>')
    return f"{name}==1 --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


@as_root
@by_apt
def test_a_fresh_clone_is_set_up_from_what_another_one_fetched(tmp_path: Path) -> None:
    # GIVEN an index of one package, a clone that fetches it by pip, and one that has no index
    environment = Host(tmp_path / "host", NEEDED).environment
    index = tmp_path / "index"
    lock = publish(index, "locked")
    folder = tmp_path / "of a stick"
    clones = [make_clone(tmp_path / name) for name in ("here", "there")]
    for clone, installs in zip(clones, ("", f'{sys.executable} -m pip "$@" --target {clones[1]}/got'), strict=True):
        (clone / "scripts/runtime.lock").write_text(lock)
        ours = f"touch {clone}/.venv/bin/rankscope; chmod +x {clone}/.venv/bin/rankscope"
        program(
            clone / ".venv/bin/pip",
            f'case "$*" in *" -e .") {ours} ;; install*) {installs} ;; *) {sys.executable} -m pip "$@" ;; esac',
        )
    online = {**environment, "PIP_INDEX_URL": index.as_uri(), "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    code, _, said = set_up(clones[0], "--fetch", str(folder), "--runtime", environment=online)
    assert code == 0 and len(list(folder.iterdir())) == 1, said
    # WHEN the index is gone
    shutil.rmtree(index)
    code, _, said = set_up(clones[1], "--offline", str(folder), "--runtime", environment=online)
    assert code == 0, said
    assert (clones[1] / "got/locked.py").exists()
    # THEN a file that is another than it was is refused
    (one,) = folder.iterdir()
    one.write_bytes(one.read_bytes() + b"\0")
    shutil.rmtree(clones[1] / "got")
    (clones[1] / ".venv/rankscope-setup").unlink()
    code, _, said = set_up(clones[1], "--offline", str(folder), "--runtime", environment=online)
    assert code == 69 and "hash" in said.lower() and not (clones[1] / "got/locked.py").exists()
