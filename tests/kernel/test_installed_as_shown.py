"""What the README types to install a clone and to remove it: in mounts of its own, where this host's files cannot be changed."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from documents import README, REPOSITORY, lines, section

# Where it writes, each with a layer of its own above what is there.
WRITTEN = ("/opt", "/usr/local/bin", "/etc/systemd/system", "/var/lib", "/var/cache")
LAYERS = """set -eu
mount --make-rprivate /
mkdir -p layers from && mount -t tmpfs none layers
mount --bind "$1" from
number=0
for place in $2; do
    number=$((number + 1))
    [ -d "$place" ] || continue
    mkdir -p layers/$number/upper layers/$number/work
    mount -t overlay none -o "lowerdir=$place,upperdir=layers/$number/upper,workdir=layers/$number/work" "$place"
done
rm -rf /opt/rankscope
"""
# What is removed and was there before is a device in its layer.
LEFT = "\ncd /; find '{0}'/layers/*/upper -mindepth 1 ! -type d ! -type c\n"


def test_a_clone_is_installed_looked_at_and_removed_as_shown_and_nothing_is_left(tmp_path: Path) -> None:
    typed = lines(section(README.read_text(), "Install"))
    installing = typed[: next(at for at, line in enumerate(typed) if line.startswith("ln -s ")) + 1]
    (removing,) = (line for line in typed if line.startswith("rm -rf /opt/rankscope "))
    assert [shlex.split(line)[0] for line in installing] == ["git", "cd", "scripts/setup", ".venv/bin/rankscope", "ln"]
    source = shlex.quote(str(tmp_path / "from"))
    script = LAYERS + "\n".join(installing).replace("REPOSITORY", source)
    script += "\nrankscope causes > /dev/null; echo installed\n" + removing + LEFT.format(tmp_path)
    here = os.environ | {"PATH": f"/usr/local/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(REPOSITORY), " ".join(WRITTEN)],
        cwd=tmp_path, env=here, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "[5/5] ready" in done.stdout and "This host can be observed." in done.stdout
    ended = done.stdout.partition("\ninstalled\n")[2].splitlines()
    assert [line for line in ended if "rankscope" in line] == []
