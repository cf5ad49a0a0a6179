"""A hook that is killed after it drained, before it has counted again, leaves no drain beyond the limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_trees import DEPLOY, SWEPT, program
from test_drain_limit import SCONTROL

from rankscope.diagnose.sweep import hook
from rankscope.diagnose.sweep.hook import run_hook

# As far as the hook uses it; a file for each node: its label, whether it is cordoned, and whether a hook did it.
KUBECTL = """
import json, sys
from pathlib import Path
nodes, words = Path(sys.argv[1]), sys.argv[2:]
if words[:2] == ["patch", "node"]:
    said = json.loads(words[words.index("-p") + 1])
    label, cordoned = said["metadata"]["labels"]["rankscope/cordoned"], said["spec"]["unschedulable"]
    was = (nodes / words[2]).read_text().split(" ")
    by = was[2:] if was[1] else ["{}"] if "--field-manager=rankscope-cordon" in words else []
    (nodes / words[2]).write_text(" ".join([label, "true", *by]) if cordoned else f"{label} ")
elif words[:2] == ["get", "node"]:
    _, cordoned, *by = (nodes / words[2]).read_text().split(" ")
    assert words[4].startswith("jsonpath={.spec.unschedulable} {.metadata.managedFields[") and "rankscope-cordon" in words[4]
    print(" ".join([cordoned, *(by or [""])]), end="")
else:
    assert words[:3] == ["get", "nodes", "-l"] and words[4] == "--field-selector=spec.unschedulable=true", words
    wanted = {"=unsure": ["unsure"], "=true": ["true"], " in (true,unsure)": ["true", "unsure"]}
    for node in sorted(nodes.iterdir()):
        label, _, cordoned = node.read_text().partition(" ")
        if cordoned and label in wanted[words[3].removeprefix("rankscope/cordoned")]:
            print(f"node/{node.name}")
"""
# What says that a node is in service, drained and not counted, drained and counted; and that somebody else drained it.
STATES = {
    "slurm": ("State=IDLE", "State=IDLE+DRAIN Reason=rankscope: os.kmsg (not counted yet) [root@now]",
              "State=IDLE+DRAIN Reason=rankscope: os.kmsg [root@now]", "State=IDLE+DRAIN Reason=disk swap [ann@now]"),
    "kubernetes": ("false ", "unsure true {}", "true true {}", " true"),
}  # fmt: skip


class Cluster:
    """Six nodes behind a program that answers as scontrol or kubectl does."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.nodes = kind, folder, folder / "nodes"
        self.well, self.unsure, self.counted, self.others = STATES[kind]
        self.nodes.mkdir()
        for number in range(6):
            self.put(number, self.well)
        (folder / "answers.py").write_text({"slurm": SCONTROL, "kubernetes": KUBECTL}[kind])
        self.hook = DEPLOY / "hooks" / {"slurm": "slurm-drain.sh", "kubernetes": "kubernetes-cordon.sh"}[kind]
        self.answers()

    def answers(self, first: str = "") -> None:
        answer = f'exec {sys.executable} -I {self.folder}/answers.py {self.nodes} "$@"'
        program(self.folder / "tool", f"{first}\n{answer}")

    def put(self, number: int, state: str) -> None:
        (self.nodes / f"node-{number}").write_text(state)

    def environment(self, number: int) -> dict[str, str]:
        name, node = {"slurm": ("SCONTROL", "SLURMD_NODENAME"), "kubernetes": ("KUBECTL", "NODE_NAME")}[self.kind]
        return {name: str(self.folder / "tool"), node: f"node-{number}", "RANKSCOPE_MOST_DRAINED": "2"}

    def call(self, number: int, **more: str) -> int:
        """The hook of a node; its exit code."""
        return subprocess.run(
            [str(self.hook)], input=json.dumps(SWEPT), text=True, env=self.environment(number) | more,
            capture_output=True, check=False,
        ).returncode  # fmt: skip

    def drained(self) -> dict[int, str]:
        found = {number: (self.nodes / f"node-{number}").read_text() for number in range(6)}
        return {number: text for number, text in found.items() if "DRAIN" in text or " true" in text}


@pytest.fixture(params=STATES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    return Cluster(request.param, tmp_path)


def test_a_drain_that_was_not_counted_is_counted_when_the_hook_is_called_again(cluster: Cluster) -> None:
    # GIVEN hosts that all counted before others drained, and whose hooks were killed then
    for number in range(6):
        cluster.put(number, cluster.unsure)
    # WHEN their hooks are called again, in whatever order THEN as many stay as may, and not one less
    codes = {number: cluster.call(number) for number in (5, 0, 3, 1, 4, 2)}
    assert sorted(cluster.drained()) == [0, 1]
    assert codes == {0: 0, 1: 0, 2: 1, 3: 1, 4: 1, 5: 1}
    assert not any("not counted" in text or "unsure" in text for text in cluster.drained().values())
    assert [cluster.call(number) for number in range(6)] == [0, 0, 1, 1, 1, 1] and sorted(cluster.drained()) == [0, 1]


def test_a_drain_that_was_counted_and_one_of_somebody_else_stay_however_many_there_are(cluster: Cluster) -> None:
    for number in (2, 3, 4):
        cluster.put(number, cluster.counted)
    cluster.put(5, cluster.others)
    cluster.put(0, cluster.unsure)
    assert [cluster.call(number) for number in (5, 4, 0)] == [0, 0, 1]
    assert cluster.drained() == {2: cluster.counted, 3: cluster.counted, 4: cluster.counted, 5: cluster.others}


@pytest.mark.parametrize("ends", [True, False], ids=["told to end", "killed"])
def test_a_hook_whose_time_is_up_as_it_counts_again_takes_its_drain_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    # GIVEN a cluster that takes long to say who is drained, once all hosts ask it
    all_nodes = {"slurm": '"--oneliner show node"', "kubernetes": '"get nodes"*'}[cluster.kind]
    cluster.answers(
        f'case "$*" in {all_nodes}) [ -z "$(grep -lE "not counted|unsure" {cluster.nodes}/*)" ] || exec sleep 30 ;; esac'
    )
    for name, value in cluster.environment(3).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANKSCOPE_ANSWER_S", "20")
    monkeypatch.setattr(hook, "GRACE_S", 5.0 if ends else 0.0)
    monkeypatch.setattr(hook, "_GRACE_PART", 0.1)
    said = run_hook(str(cluster.hook), SWEPT, 1.5)
    assert "did not end within 1.5 s" in said
    assert bool(cluster.drained()) != ends


def test_a_cluster_that_does_not_answer_keeps_no_hook_until_it_is_killed(cluster: Cluster) -> None:
    # GIVEN one that answers no more as soon as it has been told to drain
    cluster.answers(f'[ -z "$(grep -lE "not counted|unsure" {cluster.nodes}/*)" ] || exec sleep 30')
    began = time.monotonic()
    assert cluster.call(3, RANKSCOPE_ANSWER_S="0.7") == 1
    assert time.monotonic() - began < 10 and list(cluster.drained()) == [3]
    cluster.answers()
    assert cluster.call(3) == 0 and cluster.drained()[3].replace("gpu.xid", "os.kmsg") == cluster.counted


def test_what_is_refused_takes_no_drain_of_somebody_else_back(cluster: Cluster) -> None:
    # GIVEN an operator who drains the node while the hook counts, and a cluster that then refuses ours
    cluster.put(3, cluster.well)
    asked = {"slurm": "update*DRAIN*", "kubernetes": '"patch node"*unsure*'}[cluster.kind]
    cluster.answers(f'case "$*" in {asked}) printf %s "{cluster.others}" > {cluster.nodes}/node-3; exit 1 ;; esac')
    assert cluster.call(3) == 1 and cluster.drained() == {3: cluster.others}
    assert os.access(cluster.hook, os.X_OK)


def test_a_cluster_that_does_not_say_whether_the_node_is_drained_has_no_drain_of_an_operator_taken_back(
    cluster: Cluster,
) -> None:
    # GIVEN an operator who drained the node, and a cluster that does not answer when it is asked
    cluster.put(3, cluster.others)
    one = {"slurm": '*"show node node-3"', "kubernetes": '"get node node-3"*'}[cluster.kind]
    cluster.answers(f'case "$*" in {one}) exec sleep 30 ;; update*|patch*) touch {cluster.folder}/told ;; esac')
    assert cluster.call(3, RANKSCOPE_ANSWER_S="0.3") != 0
    assert cluster.drained() == {3: cluster.others} and not (cluster.folder / "told").exists()


@pytest.mark.parametrize("cluster", ["kubernetes"], indirect=True)
def test_a_cordon_of_an_operator_under_a_label_that_was_left_is_his(cluster: Cluster) -> None:
    # GIVEN a node that a hook was killed on, that was uncordoned, and that an operator cordoned later; and others
    cluster.put(4, "unsure true")
    for number in (1, 2):
        cluster.put(number, cluster.counted)
    assert cluster.call(4) == 0 and cluster.drained()[4] == "unsure true"
