"""At most so many nodes are drained, whoever does it and however many see the same at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sweep_trees import DEPLOY, SWEPT, program

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
