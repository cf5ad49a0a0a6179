"""A host is drained for what is so twice, by who said so himself, and never a whole cluster at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_trees import DEPLOY, host, ib, program, put

from rankscope.diagnose.face.cli import start
from rankscope.diagnose.face.cli.main import run as command_line
from rankscope.diagnose.service.tell.drain import of_verdict
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.confirm import confirmed
from rankscope.diagnose.sweep.context import Context, Earlier, NotApplicable, Reading
from rankscope.diagnose.sweep.engine import sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.registry import Check
from rankscope.diagnose.sweep.store import open_store

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
    # and counted once: the next sweep has nothing new to say, and warns of what was
    assert command_line(arguments) == 1
    assert "2 exceptions 0 s ago" in capsys.readouterr().out


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


@pytest.mark.parametrize("dark", ["at the second look", "at a whole sweep"])
def test_what_a_device_counted_while_it_could_not_be_read_is_told_later(tmp_path: Path, dark: str) -> None:
    # GIVEN two devices that count errors; of one nothing can be read for a while, and the check passes over it
    looks = 0

    def errors(context: Context) -> Iterator[Finding]:
        nonlocal looks
        looks += 1
        for name in ("a", "b"):
            if name == "b" and looks == (3 if dark == "at the second look" else 2):
                continue
            grown = context.grown(name, 0 if looks == 1 else 1 if name == "a" else 3)
            state = "critical" if grown.amount else "ok"
            yield context.bad(state, "x", grown.amount, instance=name, expected="0", why="data was lost", action="look")

    checks, config, tree = [Check("a", "", "", {}, errors)], Config(confirm_s=0), host(tmp_path / "root")

    def swept() -> list[tuple[str, float | str | None]]:
        with open_store(tmp_path / "s") as store:
            earlier = store.earlier()
            done = confirmed(sweep(checks, config, earlier, tree), checks, config, earlier, tree)
            return [(one.state, one.value) for one in store.save(done, ("a",), 14).findings]

    assert swept() == [("ok", 0.0), ("ok", 0.0)]
    # THEN it is told when it can be, what the other one counted is not told again, and each once
    assert swept() == [("critical", 1.0)] + ([("warning", 3.0)] if dark == "at the second look" else [])
    assert [swept(), swept()] == [[("ok", 0.0), ("critical", 3.0)], [("ok", 0.0), ("ok", 0.0)]]


def test_errors_of_a_long_pause_that_the_second_look_cannot_see_are_not_used_up(tmp_path: Path) -> None:
    # GIVEN a host that was off for two days, and a counter that cannot be read at the second look
    looks = 0

    def errors(context: Context) -> Iterator[Finding]:
        nonlocal looks
        looks += 1
        grown = context.grown("errors", 3 if looks == 1 else None)
        state = "critical" if grown.amount else "ok" if grown.first else "unknown"
        yield context.bad(state, "x", grown.amount, instance="a", expected="0", why="data was lost", action="look")

    checks, config, tree = [Check("a", "", "", {}, errors)], Config(confirm_s=0), host(tmp_path / "root")
    earlier = Earlier({("a", "errors"): Reading(0.0, time.time() - 2 * 86400, 1e5, "boot-before")})
    done = confirmed(sweep(checks, config, earlier, tree), checks, config, earlier, tree)
    assert done.findings[0].state == "warning" and "could not be looked at again" in done.findings[0].why
    assert not done.counters and ("a", "errors") in done.unread


def test_a_device_that_stays_away_is_forgotten(tmp_path: Path) -> None:
    def errors(context: Context) -> Iterator[Finding]:
        for name in ("a", "b") if context.uptime_s < 1e5 + 1 else ("a",):
            context.grown(name, 1)
            yield context.ok("x", instance=name)

    checks, tree = [Check("a", "", "", {}, errors)], host(tmp_path / "root")
    kept = []
    for hours in (0, 23, 46):
        put(tree, {"proc/uptime": f"{1e5 + hours * 3600} 1.0\n"})
        with open_store(tmp_path / "s") as store:
            earlier = store.earlier()
            store.save(sweep(checks, Config(), earlier, tree, 1.8e9 + hours * 3600), ("a",), 14)
            kept.append({key for _, key in store.earlier().counters})
    assert kept == [{"a", "b"}, {"a", "b"}, {"a"}]


# --- the code and the word


def test_the_last_line_begins_with_the_state_and_no_other_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = host(tmp_path / "root", {"dev/kmsg": "3,1,7,-;Kernel panic - not syncing: critical: \\x0acritical: \n"})
    (tmp_path / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
    arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "s"), "--config", str(tmp_path / "now.toml")]
    assert command_line([*arguments, "-v"]) == 2
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
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from rankscope.diagnose.face.cli.start import main; main()"
    )
    said = subprocess.run([sys.executable, "-c", script, "sweep"], capture_output=True, text=True, check=False)
    assert said.returncode == code and said.stdout == "" and said.stderr.startswith("rankscope: cannot start")
    assert "Traceback" not in said.stderr


def test_the_installed_command_begins_there() -> None:
    text = (DEPLOY.parents[1] / "pyproject.toml").read_text()
    assert f'rankscope = "{start.__name__}:main"' in text


@pytest.mark.parametrize(
    ("numbers", "drains"), [((31,), False), ((69,), False), ((79,), True), ((13, 48), True), ((), True)]
)
def test_an_xid_that_user_code_causes_drains_nobody(numbers: tuple[int, ...], drains: bool) -> None:
    evidence = [{"measure": f"Xid {number} on gpu1: told"} for number in numbers]
    suspect = {"component": "gpu", "cause": "xid", "instance": "gpu1", "host": "node-7", "evidence": evidence}
    assert of_verdict({"suspects": [suspect]}) == (("node-7", "rankscope: gpu/xid gpu1") if drains else ("", ""))


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
