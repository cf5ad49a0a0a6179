"""The hook of a sweep, and its configuration: whose it is, what it gets, that it ends, and that what it did not take is told again."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import SWEPT, host, ib, program, put

from rankscope.diagnose.face.cli.main import run as command_line
from rankscope.diagnose.sweep.config import Config, ConfigError, read_config
from rankscope.diagnose.sweep.context import Earlier
from rankscope.diagnose.sweep.engine import sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.hook import run_hook
from rankscope.diagnose.sweep.owed import MOST_OWED, OF_GROWTH, as_words, owed
from rankscope.diagnose.sweep.registry import all_checks

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


def test_a_hook_runs_in_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LD_PRELOAD": "/nonexistent.so",
        "PYTHONPATH": "/tmp",
        "BASH_ENV": "/tmp/x",
        "NODE_NAME": "node-7",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/tmp:/usr/bin")
    hook = program(
        tmp_path / "hook",
        f"cat > {tmp_path}/got; pwd > {tmp_path}/where; umask >> {tmp_path}/where; env > {tmp_path}/env",
    )
    assert run_hook(str(hook), SWEPT, 10) == ""
    got = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert not {"LD_PRELOAD", "PYTHONPATH", "BASH_ENV"} & got.keys()
    assert (
        got["PATH"] == "/usr/sbin:/usr/bin:/sbin:/bin"
        and got["NODE_NAME"] == "node-7"
        and got["RANKSCOPE_STATE"] == "critical"
    )
    assert (tmp_path / "where").read_text().split() == ["/", "0077"]
    assert json.loads((tmp_path / "got").read_text()) == SWEPT


@ROOT_ONLY
@pytest.mark.parametrize(
    "trouble",
    ["another's", "open to others", "in another's folder", "behind another's link", "ours behind another's link",
     "ours behind our link in another's folder", "relative"],
)  # fmt: skip
def test_a_hook_that_others_can_change_is_not_run(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    hook = program(folder / "hook", f"touch {tmp_path}/ran")
    name = str(hook)
    if trouble == "another's":
        os.chown(hook, 65534, 65534)
    elif trouble == "open to others":
        hook.chmod(0o777)
    elif trouble == "in another's folder":
        os.chown(folder, 65534, 65534)
    elif trouble == "behind another's link":
        other = tmp_path / "other"
        other.mkdir()
        (other / "link").symlink_to(program(other / "mine", f"touch {tmp_path}/ran"))
        os.chown(other, 65534, 65534)
        name = str(other / "link")
    elif trouble.startswith(
        "ours behind"
    ):  # whoever turns the link chooses which of root's programs runs: a shell, say
        other = tmp_path / "other"
        other.mkdir()
        (other / "link").symlink_to(hook)
        if "another's link" in trouble:
            os.lchown(other / "link", 65534, 65534)
        else:
            os.chown(other, 65534, 65534)
        name = str(other / "link")
    else:
        name = "hook"
    assert "it was not run" in run_hook(name, SWEPT, 10)
    assert not (tmp_path / "ran").exists()


def test_a_hook_that_hangs_ends_with_all_it_started(tmp_path: Path) -> None:
    hook = program(tmp_path / "hook", f"sleep 60 & echo $! > {tmp_path}/child; sleep 60")
    began = time.monotonic()
    assert "did not end within 0.5 s" in run_hook(str(hook), SWEPT, 0.5)
    assert time.monotonic() - began < 5
    child = int((tmp_path / "child").read_text())
    time.sleep(0.1)
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or " Z " in state.read_text()


@ROOT_ONLY
def test_a_hook_is_run_by_a_link_of_ours_and_in_a_folder_where_everybody_has_his_own(tmp_path: Path) -> None:
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    program(folder / "hook", f"touch {tmp_path}/ran")
    (tmp_path / "there").symlink_to("sticky")
    assert run_hook(str(tmp_path / "there" / ".." / "there" / "hook"), SWEPT, 10) == ""
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("how", ["setsid -f", "setsid"])
def test_what_a_hook_made_a_daemon_ends_with_it(tmp_path: Path, how: str) -> None:
    hook = program(tmp_path / "hook", f"{how} sh -c 'echo $$ > {tmp_path}/daemon; sleep 60; :' &\nsleep 0.3")
    assert run_hook(str(hook), SWEPT, 10) == ""
    assert not Path("/proc", (tmp_path / "daemon").read_text().strip()).exists()


@ROOT_ONLY
def test_nobody_waits_for_a_hook_that_the_kernel_does_not_let_go_of(frozen_disk: Path, tmp_path: Path) -> None:
    hook = program(tmp_path / "hook", f"exec touch {frozen_disk}/x")
    said: list[str] = []
    waits = threading.Thread(target=lambda: said.append(run_hook(str(hook), SWEPT, 0.5)), daemon=True)
    waits.start()
    waits.join(10)
    assert not waits.is_alive() and "did not end within 0.5 s" in said[0]


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that nobody can write, and no writer be killed, until it is thawed."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    for words in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        done = subprocess.run(words, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no {words[0]} here")
    subprocess.run(["fsfreeze", "-f", place], check=True)
    yield place
    subprocess.run(["fsfreeze", "-u", place], check=True)
    for _ in range(100):
        if not subprocess.run(["umount", place], capture_output=True, check=False).returncode:
            return
        time.sleep(0.05)
    raise AssertionError("somebody still writes")


def test_a_hook_that_floods_or_never_reads_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    hook = program(tmp_path / "hook", "head -c 50000000 /dev/zero | tr '\\0' x >&2; exit 3")
    large = {**SWEPT, "notes": ["x" * 1_000_000]}
    said = run_hook(str(hook), large, 20)
    assert "exit code 3" in said and len(said) < 1000


def test_a_configuration_that_is_a_fifo_keeps_no_sweep_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(tmp_path / "sweep.toml", ())


@ROOT_ONLY
@pytest.mark.parametrize("trouble", ["another's", "open to others"])
def test_a_configuration_that_others_can_write_is_refused(tmp_path: Path, trouble: str) -> None:
    config = tmp_path / "sweep.toml"
    config.write_text('[sweep]\nhook = "/sbin/poweroff"\n')
    if trouble == "another's":
        os.chown(config, 65534, 65534)
    else:
        config.chmod(0o666)
    with pytest.raises(ConfigError):
        read_config(config, [])


# --- what the hook is owed


class Counted:
    """A host whose CPUs count machine checks, and sweeps of it with a hook or without."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = host(folder / "root", ib("mlx5_0", link_downed="0"))
        self.hook = folder / "hook"
        (folder / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
        self.hook_ends(0)
        assert self.sweep() == 0

    def hook_ends(self, code: int) -> None:
        program(self.hook, f"cat > {self.folder}/got; exit {code}")

    def errors(self, count: int) -> None:
        put(self.tree, {"proc/interrupts": f"MCE: {count}\n"})

    def sweep(self, *more: str, hook: bool = False) -> int:
        arguments = ["sweep", "--root", str(self.tree), "--state", str(self.folder / "s"), *more]
        arguments += [] if "--config" in more else ["--config", str(self.folder / "now.toml")]
        return command_line([*arguments, *(["--hook", str(self.hook)] if hook else [])])

    def told(self) -> list[str]:
        """The critical checks of which the hook was told since the last call."""
        got = self.folder / "got"
        if not got.exists():
            return []
        said = json.loads(got.read_text())
        got.unlink()
        assert said["summary"]["state"] == "critical"
        return [one["id"] for one in said["findings"] if one["state"] == "critical"]


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


@pytest.mark.parametrize("by_hand", [False, True], ids=["the hook fails", "a sweep by hand has none"])
def test_an_error_that_was_counted_is_told_until_a_hook_ends_well(
    counted: Counted, by_hand: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    counted.errors(2)
    counted.hook_ends(1)
    assert counted.sweep(hook=not by_hand) == 2 and counted.told() == ([] if by_hand else ["cpu.mce"])
    for _ in range(
        2
    ):  # nothing has grown since: this sweep only warns of what was, and the host is to be drained none the less
        assert counted.sweep(hook=True) == 1 and counted.told() == ["cpu.mce"]
    counted.hook_ends(0)
    capsys.readouterr()
    assert counted.sweep(hook=True) == 1 and counted.told() == ["cpu.mce"]
    assert "what an earlier sweep found, too: cpu.mce" in " ".join(capsys.readouterr().out.split())
    assert counted.sweep(hook=True) == 1 and counted.told() == []


def test_what_is_over_is_owed_to_no_hook(counted: Counted) -> None:
    # GIVEN a port that was down while the hook failed, and is up again
    put(counted.tree, ib("mlx5_0", "1: DOWN", link_downed="0"))
    counted.hook_ends(1)
    assert counted.sweep(hook=True) == 2 and counted.told() == ["ib.port"]
    put(counted.tree, ib("mlx5_0", link_downed="0"))
    assert counted.sweep(hook=True) == 0 and counted.told() == []


@pytest.mark.parametrize("how", ["a reboot", "a day", "accepted", "skipped", "left out"])
def test_nothing_is_owed_for_what_was_repaired_or_accepted(counted: Counted, how: str) -> None:
    counted.errors(2)
    assert counted.sweep() == 2
    more: tuple[str, ...] = ()
    if how == "a reboot":
        put(counted.tree, {"proc/sys/kernel/random/boot_id": "boot-two\n", "proc/interrupts": "MCE: 0\n"})
    elif how == "a day":
        put(counted.tree, {"proc/uptime": f"{1e5 + 86401} 1.0\n"})
    elif how == "accepted":
        (counted.folder / "b.toml").write_text('[check."cpu.mce"]\nignore = ["*"]\n')
        more = ("--config", str(counted.folder / "b.toml"))
    else:
        more = ("--skip", "cpu.mce") if how == "skipped" else ("--only", "ib")
    assert counted.sweep(*more, hook=True) == 0 and counted.told() == []
    # and what was only not asked for is told when it is
    over = how in ("a reboot", "a day")
    assert counted.sweep(hook=True) == (0 if over else 1) and bool(counted.told()) == (not over)


def test_what_is_owed_is_bounded_and_some_of_each_check_stays(tmp_path: Path) -> None:
    def found(identifier: str, number: int) -> Finding:
        return Finding(identifier, "critical", f"{number}", "x", float(number), "errors", "0", "why", "do")

    done = replace(sweep([], Config(), Earlier(), host(tmp_path)), findings=(
        *(found("mem.ecc", number) for number in range(1000)), found("gpu.ecc", 7), found("ib.port", 1)
    ))  # fmt: skip
    due = owed({}, done)
    assert len(due) == MOST_OWED and [one.key for one in due[:2]] == ["mem.ecc 0", "gpu.ecc 7"]
    # THEN it comes back from the words as it was, once, and words that are none of ours are passed over
    words = {(identifier, key): word for identifier, key, word in as_words(due)}
    assert (
        owed({**words, ("hook.owed", "x"): "[1, 2", ("hook.owed", "y"): "[1, 2, 3]"}, replace(done, findings=())) == due
    )
    assert {check.id for check in all_checks()} >= OF_GROWTH
