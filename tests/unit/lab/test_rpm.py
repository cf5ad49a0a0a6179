"""scripts/packagekit/rpm: what an .rpm of a small tree holds and requires, and what its scriptlets do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "scripts/packagekit/rpm"
FILES = {
    "opt/rankscope/.venv/pyvenv.cfg": "home = /usr/bin\n",
    "opt/rankscope/scripts/deploy/README.md": "",
    "usr/lib/systemd/system/rankscope-watch.service": "[Unit]\n",
    "usr/lib/systemd/system/rankscope-sweep.timer": "[Unit]\n",
    "usr/share/bash-completion/completions/rankscope": "",
    "usr/share/man/man1/rankscope.1.gz": "",
    "usr/share/man/man1/rankscope-watch.1.gz": "",
    "usr/share/doc/rankscope/README.md": "",
}
LINKS = {
    "opt/rankscope/.venv/bin/python": "/usr/bin/python3.11",
    "usr/bin/rankscope": "/opt/rankscope/.venv/bin/rankscope",
}
LIBRARY = "opt/rankscope/.venv/lib/python3.11/site-packages/one/library.so"

TOOLS = ("rpmbuild", "cpio")
pytestmark = pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="no rpmbuild or cpio (scripts/setup --lab)")


def build(folder: Path, machine: str) -> Path:
    """Return an .rpm of a tree as scripts/package makes it, with one file of each kind."""
    tree = folder / "tree"
    for name, text in {**FILES, "usr/share/doc/rankscope/copyright": "Apache"}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for name, target in LINKS.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target)
    (tree / LIBRARY).parent.mkdir(parents=True)
    shutil.copy("/bin/true", tree / LIBRARY)  # linked against libraries, which are not to be required
    command = [str(SCRIPT), str(tree), "0.2.0", machine, "3.11", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / done.stdout.strip()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("package"), "x86_64")


def query(package: Path, *arguments: str) -> list[str]:
    command = ["rpm", "-qp", *arguments, str(package)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_it_requires_the_python_of_appstream_and_no_library_of_its_own_wheels(package: Path) -> None:
    required = {name for name in query(package, "--requires") if not name.startswith("rpmlib(")}
    assert required == {"/bin/sh", "iproute", "libstdc++", "python3.11"}
    assert query(package, "--provides") == ["rankscope = 0.2.0-1.el9", "rankscope(x86-64) = 0.2.0-1.el9"]


def test_it_holds_the_tree_as_it_is_and_root_owns_all_of_it(package: Path) -> None:
    listed = dict(
        line.split(" ", 1) for line in query(package, "--qf", r"[%{FILENAMES} %{FILEUSERNAME} %{FILELINKTOS}\n]")
    )
    held = {*FILES, *LINKS, LIBRARY, "usr/share/licenses/rankscope/LICENSE"}
    assert {f"/{name}" for name in held} <= listed.keys()
    assert {name: listed[f"/{name}"] for name in LINKS} == {name: f"root {target}" for name, target in LINKS.items()}
    assert {said.split(" ")[0] for said in listed.values()} == {"root"}
    assert {"/opt/rankscope", "/usr/share/doc/rankscope"} <= listed.keys()  # a removal takes the folders, too
    assert not {"/opt", "/usr", "/usr/bin", "/usr/lib/systemd/system", "/usr/share/man/man1"} & listed.keys()
    assert query(package, "--licensefiles") == ["/usr/share/licenses/rankscope/LICENSE"]


def test_libraries_are_packed_as_they_came(package: Path, tmp_path: Path) -> None:
    content = subprocess.run(["rpm2cpio", package], capture_output=True, check=True).stdout
    subprocess.run(["cpio", "-idm", "--quiet"], input=content, cwd=tmp_path, check=True)
    assert (tmp_path / LIBRARY).read_bytes() == Path("/bin/true").read_bytes()


def test_an_rpm_for_the_other_machine_says_so(tmp_path: Path) -> None:
    package = build(tmp_path, "aarch64")
    assert package.name == "rankscope-0.2.0-1.el9.aarch64.rpm" and query(package, "--qf", "%{ARCH}") == ["aarch64"]


def scriptlet(package: Path, kind: str, root: Path, stay: int) -> None:
    """Run a scriptlet on the host below `root`, as rpm does where `stay` packages of this name stay."""
    script = "\n".join(query(package, "--qf", f"%{{{kind}}}"))
    command = ["/bin/sh", "-c", script, "scriptlet", str(stay)]
    environment = {"PATH": "/usr/bin:/bin", "DPKG_ROOT": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_modules_are_compiled_at_the_end_of_an_upgrade_and_windows_outlive_a_removal(
    package: Path, tmp_path: Path
) -> None:
    # GIVEN a host with a module, its compiled form of an earlier version, and recorded windows
    site = tmp_path / "opt/rankscope/.venv/lib/python3.11/site-packages"
    earlier = site / "__pycache__/earlier.pyc"
    kept = tmp_path / "var/lib/rankscope/watch/window"
    for file in (earlier, kept, site / "module.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "opt/rankscope/.venv/bin").mkdir()
    (tmp_path / "opt/rankscope/.venv/bin/python").symlink_to(sys.executable)

    # WHEN an upgrade ends as rpm ends it: the files of the old package go last, then %posttrans runs
    scriptlet(package, "PREUN", tmp_path, stay=1)
    scriptlet(package, "POSTUN", tmp_path, stay=1)
    assert not earlier.exists()
    scriptlet(package, "POSTTRANS", tmp_path, stay=1)
    assert [file.name.split(".")[0] for file in site.glob("__pycache__/*.pyc")] == ["module"]

    # WHEN it is removed
    scriptlet(package, "PREUN", tmp_path, stay=0)
    scriptlet(package, "POSTUN", tmp_path, stay=0)
    assert not (site / "__pycache__").exists() and kept.exists()


def test_a_service_is_stopped_by_a_removal_only(package: Path) -> None:
    (first, *_) = query(package, "--qf", "%{PREUN}")
    for stay, said in (("1", "upgrade"), ("0", "remove")):
        done = subprocess.run(
            ["/bin/sh", "-c", f'{first}\necho "$@"', "scriptlet", stay], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{said}\n"
