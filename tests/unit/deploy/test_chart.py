"""The chart: right without any value, the same as the plain manifests, valid to the published schemas, and wrong values are refused."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import documents
import pytest
from installed import RANKSCOPE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "scripts/deploy"
CHART = DEPLOY / "kubernetes/chart"
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
_TOOLS = Path(sys.executable).parents[1] / "kubernetes/bin"  # scripts/setup --lab
HELM, KUBECTL = (shutil.which(tool, path=f"{_TOOLS}:{os.environ.get('PATH', '')}") for tool in ("helm", "kubectl"))
VALIDATE = shutil.which("kubernetes-validate", path=str(_TOOLS))
pytestmark = pytest.mark.skipif(
    None in (HELM, KUBECTL, VALIDATE) and not os.environ.get("CI"),
    reason="no helm, kubectl and schemas (scripts/setup --lab)",
)
OLDEST, NEWEST = "1.30", "1.37"  # Kubernetes: the admission policy asks for 1.30
DIGEST = "sha256:" + "5" * 64
EVERYTHING = (
    "watch.store=s3://bucket/windows", "watch.otlp=http://collector.monitoring:4318/v1/metrics",
    "watch.hook=/opt/rankscope/scripts/deploy/hooks/notify-slack.sh", "watch.hookSecret=rankscope-hook",
    "watch.envFrom[0].secretRef.name=store", "watch.serviceAccountName=windows", "watch.args={--no-routine}",
    "sweep.config=[sweep]\ntimeout_s = 20\n", "sweep.cordon.enabled=true", "sweep.hookSecret=rankscope-hook",
    "nvsentinel.socketFolder=/var/run/nvsentinel", "dashboard.enabled=true",
    "podMonitor.enabled=true", "podMonitor.labels.release=kube-prometheus-stack", "metrics.textfile.enabled=true",
    "prometheusRule.enabled=true", "prometheusRule.labels.release=kube-prometheus-stack", "imagePullSecrets[0].name=mine",
    f"image.digest={DIGEST}", "image.pullPolicy=Always", "nodeSelector.pool=train",
)  # fmt: skip


def strict(schema: Any) -> Any:
    """The same schema, where an unknown field is an error."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **made} if isinstance(schema.get("properties"), dict) else made


CUSTOM = {
    path.stem: strict(json.loads(path.read_text())) for path in (REPOSITORY / "tests/data/kubernetes").glob("*.json")
}
for _schema in CUSTOM.values():
    _schema["properties"]["metadata"] = {"type": "object"}  # the API server's own


@functools.cache
def helm(*sets: str, namespace: str = "rankscope") -> subprocess.CompletedProcess[str]:
    options = [option for one in sets for option in ("--set", one.replace(",", "\\,"))]
    command = [str(HELM), "template", "watching", str(CHART), "--namespace", namespace, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(*sets: str, namespace: str = "rankscope") -> list[dict[str, Any]]:
    done = helm(*sets, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def kustomized(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def pods(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: one["spec"]["template"]["spec"] for name, one in of_kind(documents, "DaemonSet").items()}


@functools.cache
def complaints(text: str, version: str) -> list[str]:
    """What the published schemas of a version of Kubernetes find, and those of the Prometheus operator."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        command = [str(VALIDATE), "--strict", "-k", version, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    kinds = "|".join(CUSTOM)
    return [line for line in done.stdout.splitlines() if " passed " not in line and not re.search(kinds, line)] + [
        f"{one['kind']}: {error.message}"
        for one in yaml.safe_load_all(text)
        if one and one["kind"] in CUSTOM
        for error in jsonschema.Draft202012Validator(CUSTOM[one["kind"]]).iter_errors(one)
    ]


def test_a_chart_with_no_values_is_right() -> None:
    done = helm()
    documents = rendered()
    # THEN there are both DaemonSets and nothing that acts on the cluster or needs what may not be there
    assert sorted((one["kind"], one["metadata"]["name"]) for one in documents) == [
        ("DaemonSet", "rankscope-sweep"), ("DaemonSet", "rankscope-watch"),
    ]  # fmt: skip
    assert {one["metadata"]["namespace"] for one in documents} == {"rankscope"}
    for pod in pods(documents).values():
        assert {one["image"] for one in pod["containers"]} == {f"localhost/rankscope:{VERSION}"}
        assert pod["automountServiceAccountToken"] is False and pod["tolerations"] == [{"operator": "Exists"}]
        assert (pod["runtimeClassName"], pod["nodeSelector"]) == ("nvidia", {"nvidia.com/gpu.present": "true"})
        given = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert (given["NVIDIA_VISIBLE_DEVICES"], given["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "utility")
    assert not complaints(done.stdout, OLDEST) and not complaints(done.stdout, NEWEST)


def test_helm_has_nothing_to_say_against_the_chart() -> None:
    done = subprocess.run([str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "0 chart(s) failed" in done.stdout, done.stdout
    assert not re.search(r"\[(WARNING|ERROR)\]", done.stdout)


@pytest.mark.parametrize(
    ("sets", "folder"), [(("gpu.enabled=false",), "kubernetes"), ((), "kubernetes-gpu")], ids=["any node", "GPUs"]
)
def test_chart_and_manifests_have_the_same_rights_mounts_and_arguments(sets: tuple[str, ...], folder: str) -> None:
    plain = kustomized(folder)
    made, wanted = of_kind(rendered(*sets), "DaemonSet"), of_kind(plain, "DaemonSet")
    assert set(made) == set(wanted) == {"rankscope-watch", "rankscope-sweep"}
    for name, one in made.items():
        assert one["spec"] == wanted[name]["spec"], name
        assert one["metadata"]["namespace"] == wanted[name]["metadata"]["namespace"]
    assert [one["metadata"]["labels"] for one in plain if one["kind"] == "Namespace"] == [
        {"pod-security.kubernetes.io/enforce": "privileged"}
    ]


def test_who_may_cordon_is_the_same_in_both_and_is_of_the_release_namespace() -> None:
    plain = list(yaml.safe_load_all((DEPLOY / "kubernetes/cordon-rbac.yaml").read_text()))
    documents = rendered("sweep.cordon.enabled=true", "sweep.cordon.most=5", namespace="kube-system")
    made = {(one["kind"], one["metadata"]["name"]): one for one in documents if one["kind"] != "DaemonSet"}
    assert len(made) == len(plain) == 5
    for one in plain:
        other = made[one["kind"], one["metadata"]["name"]]
        del other["metadata"]["labels"]
        assert other == one
    assert "kube-system" not in yaml.safe_dump_all(rendered("sweep.cordon.enabled=true"))
    # Only the sweep may, with the hook that the right is for; the service has no token.
    both = pods(documents)
    sweep = both["rankscope-sweep"]
    (script,) = sweep["containers"][0]["args"]
    assert (sweep["serviceAccountName"], sweep["automountServiceAccountToken"]) == ("rankscope-sweep", True)
    assert "--hook /opt/rankscope/scripts/deploy/hooks/kubernetes-cordon.sh " in script
    assert {"name": "RANKSCOPE_MOST_DRAINED", "value": "5"} in sweep["containers"][0]["env"]
    assert both["rankscope-watch"]["automountServiceAccountToken"] is False


def test_a_cluster_without_gpus_hears_nothing_of_them() -> None:
    assert "nvidia" not in helm("gpu.enabled=false").stdout.lower()
    for sets, said in ((), "gpu.enabled=false is for all nodes"), (("gpu.enabled=false",), "GPUs are not looked at"):
        options = [option for one in sets for option in ("--set", one)]
        command = [str(HELM), "install", "watching", str(CHART), "--dry-run=client", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and said in done.stdout.partition("NOTES:")[2], done.stderr
    unlabelled = pods(rendered("gpu.nodeSelector=null", "nodeSelector.pool=train"))["rankscope-watch"]
    assert unlabelled["nodeSelector"] == {"pool": "train"} and unlabelled["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pods(rendered("gpu.runtimeClassName="))["rankscope-watch"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_everything_that_can_be_asked_for_is_valid(version: str) -> None:
    done = helm(*EVERYTHING)
    assert done.returncode == 0, done.stderr
    assert complaints(done.stdout, version) == []


@pytest.mark.parametrize(
    "sets",
    [("metrics.textfile.enabled=true", "metrics.port.enabled=false"), ("metrics.port.enabled=false", "gpu.enabled=false"),
     ("sweep.enabled=false", "metrics.port.number=9999"), ("watch.enabled=false", "storage.persistent=false"),
     ("watch.guard.enabled=false", "storage.persistent=false")],
)  # fmt: skip
def test_what_is_left_out_leaves_nothing_of_it_behind(sets: tuple[str, ...]) -> None:
    documents = rendered(*sets)
    assert complaints(yaml.safe_dump_all(documents), NEWEST) == []
    for pod in pods(documents).values():
        mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        said = json.dumps(pod["containers"])
        assert ("/textfile" in said) == ("textfile" in mounted)
        assert ("metrics-port" in said) == ("containerPort" in said)
        assert ("sweep-metrics" in said) <= ("sweep.enabled=false" not in sets)


@pytest.mark.skipif(not RANKSCOPE.exists(), reason="rankscope is not installed")
def test_pods_use_options_and_programs_that_exist() -> None:
    both = pods(rendered(*EVERYTHING))
    watch = {one["name"]: one for one in both["rankscope-watch"]["containers"]}
    (script,) = both["rankscope-sweep"]["containers"][0]["args"]
    (swept,) = [line for line in script.splitlines() if "rankscope sweep" in line]
    for words in (watch["watch"]["command"] + watch["watch"]["args"], watch["guard"]["command"], swept.split()):
        assert words[0] == "/opt/rankscope/.venv/bin/rankscope"
        said = subprocess.run([str(RANKSCOPE), words[1], "--help"], capture_output=True, text=True, check=True).stdout
        options = [word for word in words if word.startswith("--")]
        assert options and all(re.search(rf"^  {option}\b", said, re.MULTILINE) for option in options)
        hooks = [word for word in words if word.endswith(".sh")]
        assert all((DEPLOY / "hooks" / Path(hook).name).exists() for hook in hooks)
    assert watch["watch"]["args"][:4] == ["--metrics", "/textfile/rankscope-watch.prom", "--metrics-port", "29733"]
    assert both["rankscope-watch"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_prometheus_reaches_the_port_of_each_node_and_gets_the_sweep_there_too() -> None:
    both = pods(rendered())
    watch, sweep = both["rankscope-watch"], both["rankscope-sweep"]
    first, textfile = watch["containers"][0], "/run/rankscope/textfile"
    # Kubernetes replaces $(POD_IP), which in the node's network is the node's address.
    assert first["args"] == [
        "--metrics-port",
        "29733",
        "--metrics-address",
        "$(POD_IP)",
        "--sweep-metrics",
        "/textfile/rankscope.prom",
    ]
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in first["env"]
    assert "--textfile /textfile/rankscope.prom " in sweep["containers"][0]["args"][0]
    for pod in (watch, sweep):
        (volume,) = [one for one in pod["volumes"] if one["name"] == "textfile"]
        assert volume["hostPath"]["path"] == textfile and pod["hostNetwork"]
        assert {"name": "textfile", "mountPath": "/textfile"} in pod["containers"][0]["volumeMounts"]
    # One way of finding it at a time: annotations, or a PodMonitor by the name of the port.
    (plain, told) = (of_kind(rendered(*sets), "DaemonSet") for sets in ((), ("podMonitor.enabled=true",)))
    assert plain["rankscope-watch"]["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true", "prometheus.io/port": "29733",
    }  # fmt: skip
    assert "annotations" not in told["rankscope-watch"]["spec"]["template"]["metadata"]
    (monitor,) = of_kind(rendered("podMonitor.enabled=true"), "PodMonitor").values()
    assert monitor["spec"] == yaml.safe_load((DEPLOY / "kubernetes/podmonitor.yaml").read_text())["spec"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert first["ports"] == [{"name": endpoint["port"], "containerPort": 29733}]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items()
        <= told["rankscope-watch"]["spec"]["template"]["metadata"]["labels"].items()
    )


def test_plain_manifests_are_valid() -> None:
    alone = [path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml"]
    documents = [one for path in alone for one in yaml.safe_load_all(path.read_text())]
    assert len(documents) > 10
    for version in (OLDEST, NEWEST):
        text = yaml.safe_dump_all(documents + kustomized("kubernetes") + kustomized("kubernetes-gpu"))
        assert complaints(text, version) == []


@pytest.mark.parametrize(
    ("was", "now"),
    [("hostPID: true", "hostPID: 1"), ("hostNetwork: true", "hostNetworks: true"), ("volumeMounts:", "volumeMount:"),
     ("podMetricsEndpoints:", "podMetricEndpoints:"), ("interval: 15s", "interval: often"), ("expr: ", "exp: ")],
)  # fmt: skip
def test_what_the_schemas_do_not_know_is_found(was: str, now: str) -> None:
    text = helm("podMonitor.enabled=true", "prometheusRule.enabled=true").stdout
    assert was in text and complaints(text, NEWEST) == []
    assert complaints(text.replace(was, now), NEWEST)


def test_a_secret_is_where_hooks_look_for_it_and_only_root_reads_it() -> None:
    pod = pods(rendered(*EVERYTHING))["rankscope-watch"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "hook"]
    assert volume["secret"] == {"secretName": "rankscope-hook", "defaultMode": 0o400}
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "hook"]
    assert mount["readOnly"]
    for hook in (DEPLOY / "hooks").glob("notify-*.sh"):
        assert hook.name == "notify-common.sh" or "/notify-common.sh" in hook.read_text()
    assert f"${{RANKSCOPE_SECRETS:-{mount['mountPath']}}}/" in (DEPLOY / "hooks/notify-common.sh").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        ("image.tag=latest",), ("image.digest=sha256:DIGEST",), ("image.repository=",), ("gpu.enabled=yes",),
        ("gpus.enabled=false",), ("watch.hook=echo hello",), ("sweep.hook=/x; reboot",), ("sweep.intervalSeconds=1",),
        ("storage.hostPath=var/lib",), ("storage.hostPath=/var/lib}",), ("watch.otlp=collector:4318",),
        ("sweep.hook=/x", "sweep.cordon.enabled=true"), ("sweep.cordon.most=0",), ("metrics.port.number=80",),
        ("metrics.port=29733",), ("podMonitor.interval=15",), ("podMonitor.enabled=true", "metrics.port.enabled=false"),
        ("podMonitor.enabled=true", "watch.enabled=false"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(wrong: tuple[str, ...]) -> None:
    done = helm(*wrong)
    assert done.returncode != 0 and re.search("schema|exclude each other|needs watch.enabled", done.stderr)


def test_every_value_is_in_the_schema() -> None:
    def keys(values: Any, schema: Any, where: str) -> list[str]:
        if not isinstance(values, dict) or "properties" not in schema:
            return []
        missing = [f"{where}{key}" for key in values if key not in schema["properties"]]
        known = [key for key in values if key in schema["properties"]]
        return missing + [
            one for key in known for one in keys(values[key], schema["properties"][key], f"{where}{key}.")
        ]

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert keys(values, json.loads((CHART / "values.schema.json").read_text()), "") == []


def test_rules_of_the_chart_are_those_of_prometheus() -> None:
    made = of_kind(rendered(*EVERYTHING), "PrometheusRule")
    for name, source in (
        ("rankscope-watch", "rankscope-watch-rules.yaml"),
        ("rankscope-sweep", "rankscope-rules.yaml"),
    ):
        assert made[name]["spec"] == yaml.safe_load((DEPLOY / "prometheus" / source).read_text())
        assert made[name]["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert not of_kind(rendered("sweep.enabled=false", "prometheusRule.enabled=true"), "PrometheusRule").keys() & {
        "rankscope-sweep"
    }


def test_the_dashboard_is_the_one_of_grafana_and_health_events_have_the_nodes_name() -> None:
    made = rendered(*EVERYTHING)
    dashboard = of_kind(made, "ConfigMap")["rankscope-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["rankscope.json"]) == json.loads(
        (DEPLOY / "grafana/rankscope.json").read_text()
    )
    for pod in pods(made).values():
        container = pod["containers"][0]
        assert "--nvsentinel /nvsentinel/nvsentinel.sock" in " ".join(container["args"])
        assert {"name": "nvsentinel", "mountPath": "/nvsentinel"} in container["volumeMounts"]
        assert "NODE_NAME" in [one["name"] for one in container["env"]]


def test_one_version_everywhere() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (image,) = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["images"]
    assert (chart["version"], chart["appVersion"], image["newTag"]) == (VERSION, VERSION, VERSION)
    assert image["newName"] == yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]


@pytest.mark.parametrize("place", [REPOSITORY / "README.md", DEPLOY / "README.md"], ids=["README", "deploy"])
def test_helm_takes_what_operators_are_shown(place: Path) -> None:
    shown = [words for words in documents.commands(place.read_text()) if words[0] in ("helm", "skopeo", "kubectl")]
    helm_words = [words for words in shown if words[:2] == ["helm", "install"]]
    assert len(helm_words) == 1 and {words[0] for words in shown} == {"helm", "skopeo", "kubectl"}
    (words,) = helm_words
    given = [word for word in words[2:] if word != "--create-namespace"]
    done = subprocess.run([str(HELM), "template", *given], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # THEN the pods' image is the one that is pushed, and the logs are of a container that is there
    (copied,) = [words[-1] for words in shown if words[0] == "skopeo"]
    made = [one for one in yaml.safe_load_all(done.stdout) if one]
    images = {one["image"] for pod in pods(made).values() for one in pod["containers"]}
    assert images == {copied.removeprefix("docker://")}
    (logs,) = [words for words in shown if "logs" in words]
    watch = of_kind(made, "DaemonSet")["rankscope-watch"]
    assert logs[logs.index("-l") + 1] == f"app={watch['spec']['template']['metadata']['labels']['app']}"
    assert logs[logs.index("-c") + 1] in [one["name"] for one in watch["spec"]["template"]["spec"]["containers"]]
    for _, _, folder in [words[1:] for words in documents.inline(place.read_text(), "kubectl") if "-k" in words]:
        assert (REPOSITORY / folder / "kustomization.yaml").exists()
