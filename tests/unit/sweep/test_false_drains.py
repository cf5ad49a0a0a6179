"""A host is drained for what is so twice, by who said so himself, and never a whole cluster at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_trees import host, ib, put

from rankscope.diagnose.cli import start
from rankscope.diagnose.cli.main import run as command_line
from rankscope.diagnose.sweep.config import Config, ConfigError, read_config
from rankscope.diagnose.sweep.confirm import confirmed
from rankscope.diagnose.sweep.context import Context, Earlier, NotApplicable
from rankscope.diagnose.sweep.engine import sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.hook import run_hook
from rankscope.diagnose.sweep.owed import MOST_OWED, OF_GROWTH, as_words, owed
from rankscope.diagnose.sweep.registry import Check, all_checks
from rankscope.diagnose.sweep.store import open_store
from rankscope.diagnose.watch.tell.drain import of_verdict

DEPLOY = Path(__file__).parents[3] / "scripts" / "deploy"
SWEPT = {"host": "node-7", "summary": {"state": "critical"}, "findings": [{"id": "gpu.xid", "state": "critical"}]}
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


# --- two looks


def test_what_is_critical_only_once_is_a_warning(tmp_path: Path) -> None:
    # GIVEN one check that is critical at the first look alone, one that stays so, one that never is
    looks: dict[str, int] = {}

    def answers(identifier: str, states: list[str]) -> Check:
        def run(context: Context) -> Iterator[Finding]:
            looks[identifier] = looks.get(identifier, 0) + 1
            state = states[min(looks[identifier], len(states)) - 1]
            yield context.bad(state, "x", 1.0, expected="0", why="it is so", action="look")

        return Check(identifier, "", "", {}, run)

    checks = [answers("a", ["critical", "ok"]), answers("b", ["critical"]), answers("c", ["warning"])]
    config, tree = Config(confirm_s=0.05), host(tmp_path)
    first = sweep(checks, config, Earlier(), tree)
    began = time.monotonic()
    done = confirmed(first, checks, config, Earlier(), tree)
    # THEN it is asked again after a while, and only what it was critical for
    assert time.monotonic() - began >= 0.05
    assert [one.state for one in done.findings] == ["warning", "critical", "warning"]
    assert "not so 0.05 s later" in done.findings[0].why and looks == {"a": 2, "b": 2, "c": 1}


def test_a_counter_that_grew_is_critical_at_both_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = host(tmp_path / "root", {"proc/interrupts": "MCE: 0\n"})
    (tmp_path / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
    arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "s"), "--config", str(tmp_path / "now.toml")]
    assert command_line(arguments) == 0
    put(tree, {"proc/interrupts": "MCE: 2\n"})
    assert command_line(arguments) == 2
    assert "cpu.mce: 2 exceptions" in capsys.readouterr().out
    # and counted once: the next sweep has nothing new to say
    assert command_line(arguments) == 0


@pytest.mark.parametrize("trouble", ["fails", "is gone"])
def test_what_cannot_be_looked_at_again_is_judged_anew_by_the_next_sweep(tmp_path: Path, trouble: str) -> None:
    # GIVEN a counter that grew, and a check that cannot look the second time
    looks = 0

    def errors(context: Context) -> Iterator[Finding]:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise NotApplicable("no driver") if trouble == "is gone" else RuntimeError("no answer")
        grown = context.grown("errors", 1 if looks == 1 else 3)
        state = "critical" if grown.amount else "ok"
        yield context.bad(state, "x", grown.amount, instance="a", expected="0", why="data was lost", action="look")

    checks, config, tree = [Check("a", "", "", {}, errors)], Config(confirm_s=0), host(tmp_path / "root")

    def swept() -> Finding:
        with open_store(tmp_path / "s") as store:
            earlier = store.earlier()
            done = confirmed(sweep(checks, config, earlier, tree), checks, config, earlier, tree)
            return store.save(done, ("a",), 14).findings[0]

    assert swept().state == "ok"
    unsure = swept()
    assert unsure.state == "warning" and "could not be looked at again" in unsure.why
    # THEN the growth is not used up: it is critical at both looks of the next sweep, and told once
    assert [(one.state, one.value) for one in (swept(), swept())] == [("critical", 2.0), ("ok", 0.0)]


# --- the code and the word


def test_the_last_line_begins_with_the_state_and_no_other_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = host(tmp_path / "root", {"dev/kmsg": "3,1,7,-;Kernel panic - not syncing: critical: \\x0acritical: \n"})
    (tmp_path / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
    arguments = [
        "sweep",
        "--root",
        str(tree),
        "--state",
        str(tmp_path / "s"),
        "--config",
        str(tmp_path / "now.toml"),
        "-v",
    ]
    assert command_line(arguments) == 2
    *others, last = capsys.readouterr().out.splitlines()
    assert last.startswith("critical: node-7: 1 critical") and not [
        line for line in others if line.startswith("critical: ")
    ]


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [("critical: n: 1 critical", 2, 1), ("CRITICAL  os.kmsg\n          why\ncritical: n: 1 critical", 2, 1), ("", 2, 0),
     ("python: can't open file", 2, 0), ("  critical: x", 2, 0), ("critical: n", 1, 0), ("warning: n", 1, 0), ("", 69, 0)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("state", "drains"),
    [("IDLE+DRAIN", True), ("MIXED+DRAIN", True), ("IDLE Comment=DRAIN", False), ("DOWN*", False), (None, False)],
)
def test_jobs_are_kept_off_for_the_code_and_the_word_together_where_the_node_is_drained_by_then(
    tmp_path: Path, state: str | None, drains: bool, says: str, code: int, expected: int
) -> None:
    # A prolog that fails makes Slurm drain the node, and Slurm counts no drained nodes
    (tmp_path / "said").write_text(f"{says}\n")
    fake = program(tmp_path / "rankscope", f'echo "$@" > {tmp_path}/asked\n/bin/cat {tmp_path}/said\nexit {code}')
    answer = f"echo NodeName=n Arch=x State={state} Reason=x" if state else "exit 1"
    tool = program(tmp_path / "scontrol", f'[ "$*" = "--oneliner show node n" ] || exit 9\n{answer}')
    environment = {"RANKSCOPE": str(fake), "SCONTROL": str(tool), "SLURMD_NODENAME": "n"}
    ended = subprocess.run([str(DEPLOY / "slurm/prolog.sh")], env=environment, check=False).returncode
    assert ended == (expected if drains else 0)
    assert "--hook /opt/rankscope/scripts/deploy/hooks/slurm-drain.sh" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("code", [0, 2, 69])
def test_an_epilog_drains_through_the_hook_alone(tmp_path: Path, code: int) -> None:
    fake = program(tmp_path / "rankscope", f'echo "$@" > {tmp_path}/asked\necho critical: n\nexit {code}')
    environment = {"RANKSCOPE": str(fake), "RANKSCOPE_HOOK": "/hook"}
    said = subprocess.run([str(DEPLOY / "slurm/epilog.sh")], env=environment, capture_output=True, check=False)
    assert (said.returncode, said.stdout) == (0, b"")
    assert (tmp_path / "asked").read_text() == "sweep --fail-on critical --syslog --hook /hook\n"


def test_an_interpreter_that_cannot_read_its_program_drains_nobody(tmp_path: Path) -> None:
    # GIVEN an installation whose program is gone: Python ends with 2, which is the code of a critical host
    fake = program(tmp_path / "rankscope", f'exec {sys.executable} {tmp_path}/gone.py "$@"')
    assert subprocess.run([str(fake)], capture_output=True, check=False).returncode == 2
    assert subprocess.run([str(DEPLOY / "slurm/prolog.sh")], env={"RANKSCOPE": str(fake)}, check=False).returncode == 0


@pytest.mark.parametrize(
    ("breaks", "code"), [("raise ImportError('no numpy')", 69), ("raise RuntimeError('broken')", 70), ("1 / 0", 70)]
)
def test_a_command_that_cannot_start_ends_with_69_or_70(tmp_path: Path, breaks: str, code: int) -> None:
    # GIVEN an installation in which a library cannot be imported
    (tmp_path / "typer.py").write_text(breaks)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from rankscope.diagnose.cli.start import main; main()"
    said = subprocess.run([sys.executable, "-c", script, "sweep"], capture_output=True, text=True, check=False)
    assert said.returncode == code and said.stdout == "" and said.stderr.startswith("rankscope: cannot start")
    assert "Traceback" not in said.stderr


def test_the_installed_command_begins_there() -> None:
    text = (DEPLOY.parents[1] / "pyproject.toml").read_text()
    assert f'rankscope = "{start.__name__}:main"' in text


# --- the hook


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
    for _ in range(2):  # nothing has grown since: the host is well by this sweep, and to be drained none the less
        assert counted.sweep(hook=True) == 0 and counted.told() == ["cpu.mce"]
    counted.hook_ends(0)
    capsys.readouterr()
    assert counted.sweep(hook=True) == 0 and counted.told() == ["cpu.mce"]
    assert "what an earlier sweep found, too: cpu.mce" in " ".join(capsys.readouterr().out.split())
    assert counted.sweep(hook=True) == 0 and counted.told() == []


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
    assert counted.sweep(hook=True) == 0 and bool(counted.told()) == (how not in ("a reboot", "a day"))


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


# --- at most so many nodes

SCONTROL = """
import sys
from pathlib import Path
nodes = Path(sys.argv[1])
words = sys.argv[2:]
if words[:3] == ["--oneliner", "show", "node"]:
    for node in sorted(nodes.iterdir()):
        if not words[3:] or node.name == words[3]:
            print(f"NodeName={node.name} Arch=x86_64 CoresPerSocket=8 {node.read_text()}")
else:
    said = dict(word.split("=", 1) for word in words[1:])
    drain, node = said["State"] == "DRAIN", nodes / said["NodeName"]
    was = node.read_text()
    kept = "DOWN" if "DOWN" in was and said["State"] == "UNDRAIN" else "IDLE"
    node.write_text(f"State={kept}+DRAIN Reason={said['Reason']} [root@now]" if drain else f"State={kept}")
    late = nodes.parent / "late"
    for name in late.read_text().split() if drain and late.exists() else ():
        how = "DOWN" if name == said["NodeName"] else "IDLE"
        (nodes / name).write_text(f"State={how}+DRAIN Reason=rankscope: os.kmsg [root@now]")
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A cluster of six nodes behind a program that answers as scontrol does."""
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for number in range(6):
        (nodes / f"node-{number}").write_text("State=IDLE")
    (tmp_path / "scontrol.py").write_text(SCONTROL)
    program(tmp_path / "scontrol", f'exec {sys.executable} -I {tmp_path}/scontrol.py {nodes} "$@"')
    return tmp_path


def drain(cluster: Path, node: str, said: dict[str, Any] = SWEPT) -> subprocess.CompletedProcess[str]:
    environment = {"SCONTROL": str(cluster / "scontrol"), "SLURMD_NODENAME": node, "RANKSCOPE_MOST_DRAINED": "2"}
    return subprocess.run(
        [str(DEPLOY / "hooks/slurm-drain.sh")],
        input=json.dumps(said),
        text=True,
        env=environment,
        capture_output=True,
        check=False,
    )


def drained(cluster: Path) -> list[str]:
    return sorted(node.name for node in (cluster / "nodes").iterdir() if "DRAIN" in node.read_text())


def test_a_mistake_that_every_host_makes_drains_few(slurm: Path) -> None:
    codes = [drain(slurm, f"node-{number}").returncode for number in range(6)]
    assert drained(slurm) == ["node-0", "node-1"] and codes == [0, 0, 1, 1, 1, 1]
    assert "rankscope: gpu.xid" in (slurm / "nodes/node-0").read_text()
    # Who is drained already is no news; once somebody has resumed a node, the next one may go.
    assert drain(slurm, "node-1").returncode == 0
    (slurm / "nodes/node-0").write_text("State=IDLE")
    assert drain(slurm, "node-3").returncode == 0 and drained(slurm) == ["node-1", "node-3"]


def test_hosts_that_count_at_the_same_moment_drain_no_more(slurm: Path) -> None:
    # GIVEN one node that is drained, and another that drains itself between our count and our own draining
    (slurm / "nodes/node-1").write_text("State=IDLE+DRAIN Reason=rankscope: os.kmsg [root@now]")
    (slurm / "late").write_text("node-2")
    said = drain(slurm, "node-4")
    assert said.returncode == 1 and "same moment" in said.stderr and drained(slurm) == ["node-1", "node-2"]


def test_a_host_that_sees_too_many_takes_its_drain_back_wherever_its_name_stands(slurm: Path) -> None:
    # GIVEN two nodes that were drained long ago, one of them while we counted, and a name that comes before theirs
    (slurm / "nodes/node-5").write_text("State=IDLE+DRAIN Reason=rankscope: os.kmsg [root@now]")
    (slurm / "late").write_text("node-4")
    said = drain(slurm, "node-0")
    assert said.returncode == 1 and drained(slurm) == ["node-4", "node-5"]


def test_where_nobody_can_be_counted_afterwards_the_drain_is_taken_back(slurm: Path) -> None:
    program(
        slurm / "scontrol",
        f'''case "$*" in *"show node") [ ! -e {slurm}/updated ] || exit 1 ;; update*) touch {slurm}/updated ;; esac
exec {sys.executable} -I {slurm}/scontrol.py {slurm}/nodes "$@"''',
    )
    assert drain(slurm, "node-0").returncode == 1 and drained(slurm) == []


@pytest.mark.parametrize("state", ["DOWN", "DOWN*", "FAIL", "FAILING", "ALLOCATED+DRAIN"])
def test_what_an_operator_took_out_of_service_is_left_as_it_is(slurm: Path, state: str) -> None:
    (slurm / "nodes/node-5").write_text(f"State={state} Reason=smoke [ann@now]")
    assert drain(slurm, "node-5").returncode == 0
    assert (slurm / "nodes/node-5").read_text() == f"State={state} Reason=smoke [ann@now]"


def test_words_about_a_node_are_no_state_of_it(slurm: Path) -> None:
    (slurm / "nodes/node-5").write_text("State=IDLE Comment=was_DOWN State=DRAIN Reason=none")
    assert drain(slurm, "node-5").returncode == 0 and drained(slurm) == ["node-5"]


def test_a_drain_that_is_taken_back_brings_no_node_up_that_is_down(slurm: Path) -> None:
    (slurm / "nodes/node-1").write_text("State=IDLE+DRAIN Reason=rankscope: os.kmsg [root@now]")
    # GIVEN another node that drains itself, and an operator who sets ours DOWN, between our count and our own draining
    (slurm / "late").write_text("node-2 node-4")
    assert drain(slurm, "node-4").returncode == 1
    assert (slurm / "nodes/node-4").read_text() == "State=DOWN"


def test_what_an_operator_drained_is_left_as_it_is(slurm: Path) -> None:
    (slurm / "nodes/node-5").write_text("State=IDLE+DRAIN Reason=disk swap [ann@now]")
    assert drain(slurm, "node-5").returncode == 0
    assert "disk swap" in (slurm / "nodes/node-5").read_text()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"kind": "hardware", "drain_reason": "rankscope: nic/down mlx5_3", "drain_host": "a"}, True),
        ({"kind": "verdict", "drain_reason": "rankscope: nic/down mlx5_3", "drain_host": "b"}, False),
        ({"kind": "verdict", "words": "HANG process/deadlock"}, False),
    ],
    ids=["this host is broken", "another host is", "a job hangs"],
)
def test_of_what_the_service_says_only_broken_hardware_of_this_host_drains(
    slurm: Path, tmp_path: Path, more: dict[str, Any], expected: bool
) -> None:
    said = {"schema": "rankscope.watch/1", "state": "critical", "host": "a", **more}
    assert drain(slurm, "node-5", said).returncode == 0
    assert ("nic/down mlx5_3" in (slurm / "nodes/node-5").read_text()) == expected
    tool = program(tmp_path / "kubectl", f'case "$*" in "patch node"*) touch {tmp_path}/patched ;; esac')
    environment = {"KUBECTL": str(tool), "NODE_NAME": "node-7", "PATH": "/usr/bin:/bin"}
    hook = [str(DEPLOY / "hooks/kubernetes-cordon.sh")]
    subprocess.run(hook, input=json.dumps(said), text=True, env=environment, check=False, capture_output=True)
    assert (tmp_path / "patched").exists() == expected


@pytest.mark.parametrize(
    ("numbers", "drains"), [((31,), False), ((69,), False), ((79,), True), ((13, 48), True), ((), True)]
)
def test_an_xid_that_user_code_causes_drains_nobody(numbers: tuple[int, ...], drains: bool) -> None:
    evidence = [{"measure": f"Xid {number} on gpu1: told"} for number in numbers]
    suspect = {"component": "gpu", "cause": "xid", "instance": "gpu1", "host": "node-7", "evidence": evidence}
    assert of_verdict({"suspects": [suspect]}) == (("node-7", "rankscope: gpu/xid gpu1") if drains else ("", ""))


def test_where_nobody_can_be_counted_nobody_is_drained(slurm: Path) -> None:
    program(slurm / "scontrol", "exit 1")
    assert drain(slurm, "node-5").returncode != 0 and drained(slurm) == []


@pytest.mark.parametrize(("others", "expected"), [("", True), ("node/a\nnode/b", False)])
def test_a_pod_cordons_its_node_unless_too_many_are(tmp_path: Path, others: str, expected: bool) -> None:
    tool = program(
        tmp_path / "kubectl",
        f"""
case "$*" in
  *"get nodes"*) printf '%s\\n' '{others}'; [ ! -e {tmp_path}/patched ] || echo node/node-7 ;;
  "patch node node-7"*unschedulable*true*) touch {tmp_path}/patched ;;
esac""",
    )
    environment = {"KUBECTL": str(tool), "NODE_NAME": "node-7", "RANKSCOPE_MOST_DRAINED": "2"}
    said = subprocess.run(
        [str(DEPLOY / "hooks/kubernetes-cordon.sh")], input="{}", text=True, env=environment, check=False
    )
    assert (said.returncode == 0, (tmp_path / "patched").exists()) == (expected, expected)


def test_a_pod_that_sees_too_many_takes_its_cordon_back_wherever_its_name_stands(tmp_path: Path) -> None:
    tool = program(
        tmp_path / "kubectl",
        f"""
case "$*" in
  *"get nodes"*) echo node/x; [ ! -e {tmp_path}/patched ] || printf 'node/y\\nnode/a\\n' ;;
  "patch node a"*unschedulable*true*) touch {tmp_path}/patched ;;
  "patch node a"*unschedulable*null*) touch {tmp_path}/back ;;
esac""",
    )
    environment = {"KUBECTL": str(tool), "NODE_NAME": "a", "RANKSCOPE_MOST_DRAINED": "2"}
    said = subprocess.run(
        [str(DEPLOY / "hooks/kubernetes-cordon.sh")], input="{}", text=True, env=environment, capture_output=True,
        check=False,
    )  # fmt: skip
    assert said.returncode == 1 and (tmp_path / "back").exists()


@pytest.mark.parametrize(
    "file", ["hooks/slurm-drain.sh", "hooks/kubernetes-cordon.sh", "slurm/prolog.sh", "slurm/epilog.sh"]
)
def test_python_is_isolated_where_a_hook_uses_it(file: str) -> None:
    text = (DEPLOY / file).read_text()
    assert "env python" not in text and text.count("python3") == text.count("/usr/bin/python3 -I")
    shell = shutil.which("dash") or "/bin/sh"
    assert subprocess.run([shell, "-n", str(DEPLOY / file)], check=False).returncode == 0


def test_a_port_that_comes_back_at_once_drains_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = host(tmp_path / "root", ib("mlx5_0"))
    hook = program(tmp_path / "hook", f"touch {tmp_path}/ran")
    (tmp_path / "now.toml").write_text("[sweep]\nconfirm_s = 0.5\n")
    arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "s"), "--config", str(tmp_path / "now.toml"), "--only", "ib",
                 "--hook", str(hook)]  # fmt: skip
    assert command_line(arguments) == 0
    put(tree, ib("mlx5_0", "1: DOWN"))
    link = subprocess.Popen(
        ["/bin/sh", "-c", f"sleep 0.3; echo '4: ACTIVE' > {tree}/sys/class/infiniband/mlx5_0/ports/1/state"]
    )
    assert command_line(arguments) == 1
    link.wait()
    assert not (tmp_path / "ran").exists() and "(not so 0.5 s later)" in " ".join(capsys.readouterr().out.split())
