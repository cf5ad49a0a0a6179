"""The deployment files pass their validators and do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from installed import PROMTOOL, RANKSCOPE
from sweep_trees import DEPLOY, host, put

yaml = pytest.importorskip("yaml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_service_and_timer(tmp_path: Path) -> None:
    # The program must exist for systemd-analyze: put one there.
    for unit in (DEPLOY / "systemd").glob("rankscope-*.*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/rankscope/.venv/bin/rankscope", "/bin/true"))
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    dropin = tmp_path / "rankscope-sweep.service.d/hook.conf"
    dropin.parent.mkdir()
    dropin.write_text(
        (DEPLOY / "systemd/hook.conf").read_text().replace("/opt/rankscope/.venv/bin/rankscope", "/bin/true")
    )
    said = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    ours = [line for line in said.stderr.splitlines() if "rankscope" in line or "hook.conf" in line]
    assert said.returncode == 0 and not ours, said.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(
    ("service", "most"), [("rankscope-sweep", 3.0), ("rankscope-watch", 3.7), ("rankscope-guard", 2.5)]
)
def test_the_readme_prints_how_exposed_the_service_is(service: str, most: float) -> None:
    unit = str(DEPLOY / f"systemd/{service}.service")
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Unknown" in said.stderr or "unrecognized" in said.stderr:
        pytest.skip("this systemd has no --offline")
    found = re.search(rf"exposure level for {service}\.service: ([0-9.]+)", said.stdout)
    assert found, said.stdout + said.stderr
    # Versions of systemd weigh a little differently.
    pattern = rf"{service}\.service`[^.]*: exposure level ([0-9]+[.][0-9])"
    (printed,) = re.findall(pattern, (DEPLOY / "README.md").read_text())
    assert float(found[1]) <= most and abs(float(found[1]) - float(printed)) <= 0.3


def _set(service: str) -> dict[str, list[str]]:
    """What the unit says, each word with its values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / f"systemd/{service}.service").read_text().splitlines():
        word, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(word, []).append(value)
    return found


@pytest.mark.parametrize(
    ("service", "memory", "tasks"), [("rankscope-sweep", "256M", "256"), ("rankscope-watch", "1G", "512")]
)
def test_a_service_takes_no_more_of_a_host_than_this_and_is_what_the_kernel_kills_first(
    service: str, memory: str, tasks: str
) -> None:
    said = _set(service)
    assert said["MemoryMax"] == [memory] and said["MemorySwapMax"] == ["0"] and said["TasksMax"] == [tasks]
    assert [int(score) for score in said["OOMScoreAdjust"]] == [900]  # a rank has 0
    assert int(said["Nice"][0]) > 0


@pytest.mark.parametrize(("name", "memory"), [("daemonset.yaml", "256Mi"), ("watch-daemonset.yaml", "1Gi")])
def test_a_pod_takes_no_more_of_a_node_and_ends_before_a_job(name: str, memory: str) -> None:
    (pod,) = [
        document["spec"]["template"]["spec"]
        for document in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
        if document["kind"] == "DaemonSet"
    ]
    assert [one["resources"]["limits"]["memory"] for one in pod["containers"]][:1] == [memory]
    assert ("priorityClassName" in pod) == (name == "daemonset.yaml")
    assert ("livenessProbe" in pod["containers"][0]) == (name == "watch-daemonset.yaml")


def test_a_service_that_hangs_is_started_again_and_one_sweep_ends() -> None:
    watch, sweep = _set("rankscope-watch"), _set("rankscope-sweep")
    # It speaks every second: who has not for so long hangs.
    assert watch["Type"] == ["notify"] and watch["WatchdogSec"] == ["120"] and watch["NotifyAccess"] == ["main"]
    assert watch["Restart"] == ["on-failure"] and watch["RestartPreventExitStatus"] == ["69"]
    assert sweep["TimeoutStartSec"] == ["120"] and sweep["CPUQuota"] == ["50%"]


def test_the_guard_takes_little_and_has_the_rights_of_its_container() -> None:
    said = _set("rankscope-guard")
    assert (said["MemoryMax"], said["MemorySwapMax"], said["TasksMax"]) == (["128M"], ["0"], ["64"])
    document = yaml.safe_load((DEPLOY / "kubernetes/watch-daemonset.yaml").read_text())
    watch, guard = document["spec"]["template"]["spec"]["containers"]
    assert guard["resources"]["limits"]["memory"] == "128Mi"
    (rights,) = said["CapabilityBoundingSet"]
    assert {f"CAP_{name}" for name in guard["securityContext"]["capabilities"]["add"]} == set(rights.split())
    # The service, which reads what others wrote, cannot write what is not its own.
    assert "DAC_OVERRIDE" not in watch["securityContext"]["capabilities"]["add"]
    assert not any("CAP_DAC_OVERRIDE" in line for line in _set("rankscope-watch")["CapabilityBoundingSet"])


@pytest.mark.parametrize("service", ["rankscope-sweep", "rankscope-watch", "rankscope-guard"])
def test_a_service_is_shut_in(service: str) -> None:
    said = _set(service)
    for word in ("NoNewPrivileges", "PrivateTmp", "PrivateMounts", "ProtectKernelTunables", "ProtectKernelModules",
                 "ProtectControlGroups", "RestrictSUIDSGID", "LockPersonality"):  # fmt: skip
        assert said[word] == ["yes"], word
    assert (said["ProtectSystem"], said["DevicePolicy"], said["IPAddressDeny"]) == (["strict"], ["closed"], ["any"])
    assert said["UMask"] == ["0077"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to give rights up")
@pytest.mark.skipif(not RANKSCOPE.exists(), reason="rankscope is not installed")
def test_the_rights_of_the_service_are_enough(tmp_path: Path) -> None:
    # GIVEN this host, swept by root and then with the rights of the unit alone
    unit = (DEPLOY / "systemd/rankscope-sweep.service").read_text()
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    rights = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in line.split())])
    limits = ["setpriv", "--no-new-privs", "--bounding-set", rights, "--inh-caps", "-all"]
    (tmp_path / "now.toml").write_text("[sweep]\nconfirm_s = 0\ntimeout_s = 20\n")

    def unknown(before: list[str], state: str) -> set[str]:
        command = [
            *before,
            str(RANKSCOPE),
            "sweep",
            "--json",
            "--state",
            str(tmp_path / state),
            "--config",
            str(tmp_path / "now.toml"),
        ]
        content = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        assert not [note for note in content["notes"] if "no memory" in note]
        return {finding["id"] for finding in content["findings"] if finding["state"] == "unknown"}

    # THEN nothing is unknown that root can know
    assert unknown(limits, "limited") <= unknown([], "root")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (scripts/setup --lab fetches it)")
@pytest.mark.parametrize("name", ["rankscope-rules.yaml", "rankscope-watch-rules.yaml"])
def test_promtool_accepts_the_rules(name: str) -> None:
    rules = str(DEPLOY / "prometheus" / name)
    said = subprocess.run([str(PROMTOOL), "check", "rules", rules], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize(
    ("rules", "source", "prefix"),
    [
        ("rankscope-rules.yaml", "diagnose/sweep/output.py", "rankscope_sweep_"),
        ("rankscope-watch-rules.yaml", "diagnose/service/tell/metrics.py", "rankscope_(?:job|rank|watch)_"),
    ],
)
def test_rules_use_metrics_that_exist(rules: str, source: str, prefix: str) -> None:
    text = (DEPLOY.parents[1] / source).read_text()
    for rule in yaml.safe_load((DEPLOY / "prometheus" / rules).read_text())["groups"][0]["rules"]:
        names = re.findall(rf"{prefix}(\w+)", rule["expr"])
        assert names and all(name in text for name in names)


# The part of the Kubernetes API that the manifests use: field → what its value must be. Anything else is a mistake.
CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str], "ports": [{"name": str, "containerPort": int}],
    "livenessProbe": {"exec": {"command": [str]}, "initialDelaySeconds": int, "periodSeconds": int,
                      "timeoutSeconds": int, "failureThreshold": int},
    "env": [{"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"},
                        "runAsUser": int, "readOnlyRootFilesystem": bool, "allowPrivilegeEscalation": bool,
                        "capabilities": {"drop": [str], "add": [str]}},
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"cpu": str, "memory": str}},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}  # fmt: skip
POD = {
    "priorityClassName": str, "hostPID": bool, "hostNetwork": bool, "automountServiceAccountToken": bool,
    "restartPolicy": str, "nodeName": str, "tolerations": [{"operator": str}], "containers": [CONTAINER],
    "volumes": [{"name": str, "hostPath": {"path": str, "type": str}, "emptyDir": {"medium": str}}], "subdomain": str,
}  # fmt: skip
META = {"name": str, "namespace": str, "labels": {"app": str},
        "annotations": {"prometheus.io/scrape": str, "prometheus.io/port": str}}  # fmt: skip
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
    "Job": {
        "apiVersion": "batch/v1", "kind": str, "metadata": META,
        "spec": {"completionMode": "Indexed", "completions": int, "parallelism": int, "backoffLimit": int,
                 "activeDeadlineSeconds": int, "template": {"metadata": META, "spec": POD}},
    },
    "Service": {
        "apiVersion": "v1", "kind": str, "metadata": META,
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": bool, "selector": {"job-name": str},
                 "ports": [{"name": str, "port": int}]},
    },
    "NetworkPolicy": {
        "apiVersion": "networking.k8s.io/v1", "kind": str, "metadata": META,
        "spec": {"podSelector": {"matchLabels": {"job-name": str}}, "policyTypes": ["Ingress"],
                 "ingress": [{"from": [{"podSelector": {"matchLabels": {"job-name": str}}}]}]},
    },
    "ValidatingAdmissionPolicy": {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": str, "metadata": META,
        "spec": {"failurePolicy": "Fail",
                 "matchConstraints": {"resourceRules": [{"apiGroups": [str], "apiVersions": [str], "operations": [str],
                                                         "resources": [str]}]},
                 "matchConditions": [{"name": str, "expression": str}],
                 "validations": [{"expression": str, "message": str}]},
    },
    "ValidatingAdmissionPolicyBinding": {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": str, "metadata": META,
        "spec": {"policyName": str, "validationActions": ["Deny"]},
    },
    "ServiceAccount": {"apiVersion": "v1", "kind": str, "metadata": META},
    "Namespace": {"apiVersion": "v1", "kind": str,
                  "metadata": {"name": str, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    "PodMonitor": {
        "apiVersion": "monitoring.coreos.com/v1", "kind": str, "metadata": META,
        "spec": {"selector": {"matchLabels": {"app": str}},
                 "podMetricsEndpoints": [{"port": str, "interval": str,
                                          "relabelings": [{"sourceLabels": [str], "targetLabel": str}]}]},
    },
    "Kustomization": {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": str, "namespace": str, "resources": [str],
                      "images": [{"name": str, "newName": str, "newTag": str}]},
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
            for container in pod["containers"]:
                assert (
                    "@sha256:" in container["image"]
                    and container["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
                )
        if document["kind"] == "DaemonSet":
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_a_pod_may_cordon_its_own_node_only() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/cordon-rbac.yaml").read_text()))
    (policy,) = [one for one in documents if one["kind"] == "ValidatingAdmissionPolicy"]
    (binding,) = [one for one in documents if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    (account,) = [one["metadata"] for one in documents if one["kind"] == "ServiceAccount"]
    (role,) = [one for one in documents if one["kind"] == "ClusterRole"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (
        f"system:serviceaccount:{account['namespace']}:{account['name']}"
        in policy["spec"]["matchConditions"][0]["expression"]
    )
    assert "authentication.kubernetes.io/node-name" in policy["spec"]["validations"][0]["expression"]
    # Of its own node nothing but that label and whether it is cordoned.
    bounded = " ".join(one["expression"] for one in policy["spec"]["validations"])
    assert all(f"oldObject.{what}" in bounded for what in ("metadata.labels", "metadata.annotations", "spec.taints"))
    assert [rule["resources"] for rule in role["rules"]] == [["nodes"]] and set(role["rules"][0]["verbs"]) == {
        "get",
        "list",
        "patch",
    }


def test_the_schema_check_finds_mistakes() -> None:
    assert mistakes({"hostPid": True}, POD, "pod") == ["pod.hostPid: unknown field"]
    assert mistakes({"hostPID": "yes"}, POD, "pod") == ["pod.hostPID: 'yes' is no bool"]


@pytest.mark.parametrize("name", ["daemonset.yaml", "watch-daemonset.yaml"])
def test_every_mount_and_capability_says_what_it_is_for(name: str) -> None:
    text = (DEPLOY / "kubernetes" / name).read_text()
    for pattern in (
        r"^ +- name: (?:state|cache|textfile|tmp|alive|kmsg|sys)\b.*$",
        r"^ +- (?:[A-Z]+_?)+\b.*$",
        r"^ +host(?:PID|Network).*$",
    ):
        lines = re.findall(pattern, text, re.MULTILINE)
        assert lines and all("#" in line for line in lines), lines


def test_a_host_without_rankscope_starts_jobs(tmp_path: Path) -> None:
    environment = {"RANKSCOPE": str(tmp_path / "none")}
    assert subprocess.run([str(DEPLOY / "slurm/prolog.sh")], env=environment, check=False).returncode == 0


@pytest.mark.skipif(not RANKSCOPE.exists(), reason="rankscope is not installed")
def test_the_cron_line_runs_as_cron_runs_it(tmp_path: Path) -> None:
    # GIVEN cron's bare environment, no terminal, folder / and the command of the cron line
    (line,) = [line for line in (DEPLOY / "rankscope-sweep.cron").read_text().splitlines() if line.startswith("*/5 ")]
    command = line.split("root ", 1)[1].replace("/opt/rankscope/.venv/bin/rankscope", str(RANKSCOPE))
    tree = host(tmp_path / "root")
    put(tree, {"dev/kmsg": "3,1,7,-;Kernel panic - not syncing: x\n"})
    (tmp_path / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
    options = f"--root {tree} --state {tmp_path}/state --config {tmp_path}/now.toml"
    command = command.replace(" sweep ", f" sweep {options} ").replace("--syslog ", "")
    bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SHELL": "/bin/sh", "HOME": "/root", "LOGNAME": "root"}
    said = subprocess.run(
        ["/bin/sh", "-c", command], cwd="/", env=bare, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    # THEN the exit code tells the result, and cron has nothing to mail
    assert (said.returncode, said.stdout, said.stderr) == (2, b"", b"")
    assert (tmp_path / "state/sweep.db").exists()
