"""The deployment files pass their validators and do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sweep_trees import host, put

DEPLOY = Path(__file__).parents[3] / "scripts" / "deploy"
RANKSCOPE = Path(sys.executable).with_name("rankscope")
yaml = pytest.importorskip("yaml")
PROMTOOL = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_service_and_timer(tmp_path: Path) -> None:
    # The program must exist for systemd-analyze: put one there.
    for unit in (DEPLOY / "systemd").iterdir():
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/rankscope/.venv/bin/rankscope", "/bin/true"))
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    said = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    ours = [line for line in said.stderr.splitlines() if "rankscope" in line]
    assert said.returncode == 0 and not ours, said.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (scripts/setup --lab fetches it)")
def test_promtool_accepts_the_rules() -> None:
    rules = str(DEPLOY / "prometheus" / "rankscope-rules.yaml")
    said = subprocess.run([str(PROMTOOL), "check", "rules", rules], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_rules_use_metrics_that_exist() -> None:
    source = (DEPLOY.parents[1] / "diagnose/sweep/output.py").read_text()
    rules = yaml.safe_load((DEPLOY / "prometheus/rankscope-rules.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        for name in re.findall(r"rankscope_sweep_(\w+)", rule["expr"]):
            assert name in source


# The part of the Kubernetes API that the manifests use: field → what its value must be. Anything else is a mistake.
CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str],
    "env": [{"name": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "securityContext": {"runAsUser": int, "readOnlyRootFilesystem": bool, "allowPrivilegeEscalation": bool,
                        "capabilities": {"drop": [str], "add": [str]}},
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"cpu": str, "memory": str}},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}  # fmt: skip
POD = {
    "priorityClassName": str, "hostPID": bool, "hostNetwork": bool, "automountServiceAccountToken": bool,
    "restartPolicy": str, "nodeName": str, "tolerations": [{"operator": str}], "containers": [CONTAINER],
    "volumes": [{"name": str, "hostPath": {"path": str, "type": str}}],
}  # fmt: skip
META = {"name": str, "namespace": str, "labels": {"app": str}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "DaemonSet": {
        "apiVersion": "apps/v1", "kind": str, "metadata": META,
        "spec": {"selector": {"matchLabels": {"app": str}},
                 "updateStrategy": {"type": str, "rollingUpdate": {"maxUnavailable": str}},
                 "template": {"metadata": META, "spec": POD}},
    },
    "CronJob": {
        "apiVersion": "batch/v1", "kind": str, "metadata": META,
        "spec": {"schedule": str, "concurrencyPolicy": str, "startingDeadlineSeconds": int, "successfulJobsHistoryLimit": int,
                 "failedJobsHistoryLimit": int,
                 "jobTemplate": {"spec": {"backoffLimit": int, "activeDeadlineSeconds": int,
                                          "template": {"metadata": META, "spec": POD}}}},
    },
    "ServiceAccount": {"apiVersion": "v1", "kind": str, "metadata": META},
    "ClusterRole": {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": str, "metadata": META,
                    "rules": [{"apiGroups": [str], "resources": [str], "verbs": [str]}]},
    "ClusterRoleBinding": {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": str, "metadata": META,
                           "roleRef": {"apiGroup": str, "kind": str, "name": str},
                           "subjects": [{"kind": str, "name": str, "namespace": str}]},
}  # fmt: skip


def mistakes(value: Any, schema: Any, where: str) -> list[str]:
    """What of a manifest is not as the schema says."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: not a mapping"]
        found = [f"{where}.{key}: unknown field" for key in value if key not in schema]
        return found + [
            one for key in value if key in schema for one in mistakes(value[key], schema[key], f"{where}.{key}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [one for index, item in enumerate(value) for one in mistakes(item, schema[0], f"{where}[{index}]")]
    if isinstance(schema, str):
        return [] if value == schema else [f"{where}: {value!r} is not {schema!r}"]
    return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]


@pytest.mark.parametrize("name", sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")))
def test_manifests_keep_to_the_schema(name: str) -> None:
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()):
        assert not mistakes(document, SCHEMAS[document["kind"]], document["kind"])
        spec = document.get("spec", {})
        pod = (spec.get("jobTemplate", {}).get("spec", spec)).get("template", {}).get("spec")
        if pod:
            volumes = {volume["name"] for volume in pod["volumes"]}
            mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            assert volumes == mounted
        if document["kind"] == "DaemonSet":
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_the_schema_check_finds_mistakes() -> None:
    assert mistakes({"hostPid": True}, POD, "pod") == ["pod.hostPid: unknown field"]
    assert mistakes({"hostPID": "yes"}, POD, "pod") == ["pod.hostPID: 'yes' is no bool"]


def test_every_mount_and_capability_says_what_it_is_for() -> None:
    text = (DEPLOY / "kubernetes/daemonset.yaml").read_text()
    for pattern in (
        r"^ +- name: (?:state|textfile|kmsg|sys)\b.*$",
        r"^ +- (?:SYSLOG|SYS_PTRACE|DAC_READ_SEARCH).*$",
        r"^ +host(?:PID|Network).*$",
    ):
        lines = re.findall(pattern, text, re.MULTILINE)
        assert lines and all("#" in line for line in lines), lines


def _program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("script", ["slurm/prolog.sh", "slurm/epilog.sh"])
@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 0), (2, 1), (3, 0), (64, 0), (70, 0)])
def test_only_a_critical_host_stops_a_job(tmp_path: Path, script: str, code: int, expected: int) -> None:
    rankscope = _program(tmp_path / "rankscope", f"exit {code}")
    environment = {"RANKSCOPE": str(rankscope)}
    assert subprocess.run([str(DEPLOY / script)], env=environment, check=False).returncode == expected


def test_a_host_without_rankscope_starts_jobs(tmp_path: Path) -> None:
    environment = {"RANKSCOPE": str(tmp_path / "none")}
    assert subprocess.run([str(DEPLOY / "slurm/prolog.sh")], env=environment, check=False).returncode == 0


def test_hooks_drain_this_host(tmp_path: Path) -> None:
    tool = _program(tmp_path / "tool", f'echo "$@" >> {tmp_path}/called')
    environment = {
        **os.environ,
        "SCONTROL": str(tool),
        "KUBECTL": str(tool),
        "SLURMD_NODENAME": "node-7",
        "NODE_NAME": "node-7",
    }
    content = json.dumps({"findings": [{"id": "gpu.xid", "state": "critical"}, {"id": "net.link", "state": "warning"}]})
    for hook in ("slurm-drain.sh", "kubernetes-cordon.sh"):
        said = subprocess.run([str(DEPLOY / "hooks" / hook)], input=content, text=True, env=environment, check=False)
        assert said.returncode == 0
    assert (tmp_path / "called").read_text().splitlines() == [
        "update NodeName=node-7 State=DRAIN Reason=rankscope: gpu.xid", "cordon node-7"
    ]  # fmt: skip


@pytest.mark.skipif(not RANKSCOPE.exists(), reason="rankscope is not installed")
def test_the_cron_line_runs_as_cron_runs_it(tmp_path: Path) -> None:
    # GIVEN cron's bare environment, no terminal, folder / and the command of the cron line
    (line,) = [line for line in (DEPLOY / "rankscope-sweep.cron").read_text().splitlines() if line.startswith("*/5 ")]
    command = line.split("root ", 1)[1].replace("/opt/rankscope/.venv/bin/rankscope", str(RANKSCOPE))
    tree = host(tmp_path / "root")
    put(tree, {"dev/kmsg": "3,1,7,-;Kernel panic - not syncing: x\n"})
    command = command.replace(" sweep ", f" sweep --root {tree} --state {tmp_path}/state ").replace("--syslog ", "")
    bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SHELL": "/bin/sh", "HOME": "/root", "LOGNAME": "root"}
    said = subprocess.run(
        ["/bin/sh", "-c", command], cwd="/", env=bare, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    # THEN the exit code tells the result, and cron has nothing to mail
    assert (said.returncode, said.stdout, said.stderr) == (2, b"", b"")
    assert (tmp_path / "state/sweep.db").exists()
