"""A pod's container as a node's runtime makes it, without a cluster: the manifest's rights and mounts, the runtime's profile.

What of a manifest counts: command, args, capabilities, read-only root, hostPID, hostNetwork, volumes; the pod's address is the loopback.
The image is this host's own files, or an image's root, under a layer that is thrown away; volumes with a path below /var or /run are
folders of the test.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What Podman and CRI-O call RuntimeDefault; containerd's is its twin.
PROFILE = Path("/usr/share/containers/seccomp.json")
ADDRESS = "127.0.0.1"
CRUN = shutil.which("crun")
_REPOSITORY = Path(__file__).parents[2]
# What runtimes hide and protect in every container (OCI defaults of containerd and CRI-O).
_HIDDEN = ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
           "/proc/sched_debug", "/sys/firmware", "/proc/scsi"]  # fmt: skip
_PROTECTED = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def _profile(capabilities: list[str]) -> dict[str, Any]:
    """The runtime's seccomp profile for a container with these capabilities, as OCI wants it."""
    told = json.loads(PROFILE.read_text())
    rules = []
    for rule in told["syscalls"]:
        wanted, unwanted = rule.get("includes", {}), rule.get("excludes", {})
        if "amd64" not in wanted.get("arches", ["amd64"]) or "amd64" in unwanted.get("arches", []):
            continue
        if not set(wanted.get("caps", [])) <= set(capabilities) or set(unwanted.get("caps", [])) & set(capabilities):
            continue
        one = {"names": rule["names"], "action": rule["action"], "args": rule.get("args") or []}
        if rule.get("errnoRet") is not None:
            one["errnoRet"] = rule["errnoRet"]
        rules.append(one)
    return {
        "defaultAction": told["defaultAction"], "defaultErrnoRet": told.get("defaultErrnoRet", 1),
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "syscalls": rules,
    }  # fmt: skip


def _mounts(pod: dict[str, Any], container: dict[str, Any], folder: Path, own: bool) -> list[dict[str, Any]]:
    tmpfs = {"type": "tmpfs", "source": "tmpfs"}
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", **tmpfs, "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/shm", **tmpfs, "options": ["nosuid", "noexec", "nodev", "mode=1777"]},
    ]
    sources = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        path = sources[mount["name"]].get("hostPath", {}).get("path")
        if path is None or path.startswith(("/var/", "/run/")):
            path = str(folder / mount["name"])
            Path(path).mkdir(exist_ok=True)
        mode = "ro" if mount.get("readOnly") else "rw"
        options = ["rbind", "rprivate", mode, "nosuid", *(["noexec", "nodev"] if path == "/sys" else [])]
        mounts.append({"destination": mount["mountPath"], "type": "bind", "source": path, "options": options})
    # The program of this clone, which may lie below a folder that a volume covers.
    for place in sorted({str(_REPOSITORY), sys.prefix}) if own else ():
        mounts.append({"destination": place, "type": "bind", "source": place, "options": ["rbind", "ro"]})
    return mounts


def _environment(container: dict[str, Any]) -> dict[str, str]:
    """The container's variables; of those that are of the pod, its address."""
    return {
        one["name"]: one.get("value", ADDRESS)
        for one in container.get("env", [])
        if "value" in one or one["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    }


def command_of(pod: dict[str, Any], name: str) -> list[str]:
    """Command and arguments of a container, with $(NAME) replaced as Kubernetes does."""
    (container,) = [one for one in pod["containers"] if one["name"] == name]
    known = _environment(container)
    words = [*container["command"], *container.get("args", [])]
    return [re.sub(r"\$\((\w+)\)", lambda match: known.get(match[1], match[0]), word) for word in words]


def _settings(pod: dict[str, Any], folder: Path, command: list[str], name: str, own: bool) -> dict[str, Any]:
    (container,) = [one for one in pod["containers"] if one["name"] == name]
    security = container["securityContext"]
    capabilities = [f"CAP_{name}" for name in security["capabilities"].get("add", [])]
    held = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
    namespaces = [{"type": "mount"}, {"type": "ipc"}]
    namespaces += [] if pod.get("hostPID") else [{"type": "pid"}]
    namespaces += [] if pod.get("hostNetwork") else [{"type": "network"}, {"type": "uts"}]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "args": command, "cwd": "/", "user": {"uid": security["runAsUser"], "gid": 0}, "capabilities": held,
            "env": [
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                *(f"{key}={value}" for key, value in _environment(container).items()),
            ],
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
        },
        "root": {"path": str(folder / "image"), "readonly": security["readOnlyRootFilesystem"]},
        "mounts": _mounts(pod, container, folder, own),
        "linux": {
            "namespaces": namespaces, "seccomp": _profile(capabilities), "maskedPaths": _HIDDEN,
            "readonlyPaths": _PROTECTED,
        },
    }  # fmt: skip


def port_of(pod: dict[str, Any]) -> int:
    """The port that a Prometheus finds by the name `metrics`."""
    (port,) = [one for found in pod["containers"] for one in found.get("ports", []) if one["name"] == "metrics"]
    return int(port["containerPort"])


def scraped(pod: dict[str, Any]) -> str:
    """What the pod answers a Prometheus."""
    with urllib.request.urlopen(f"http://{ADDRESS}:{port_of(pod)}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


@contextlib.contextmanager
def running(
    pod: dict[str, Any], folder: Path, command: list[str], container: str = "watch", root: Path = Path("/")
) -> Iterator[subprocess.Popen[bytes]]:
    """A container of the pod with `command`; its volumes are folders of `folder`, by their names. `root`: of its image."""
    for name in ("image", "layer"):
        (folder / name).mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_settings(pod, folder, command, container, root == Path("/"))))
    layer = folder / "layer"
    layers = f"lowerdir={root},upperdir={layer}/upper,workdir={layer}/work"
    # The throw-away layer lies in a mount namespace of its own: gone with the last process in it.
    # crun takes no host with both versions of control groups: it is shown the second one alone.
    script = " && ".join(
        [
            "mount -t cgroup2 none /sys/fs/cgroup",
            f"mount -t tmpfs layer {layer}",
            f"mkdir {layer}/upper {layer}/work",
            f"mount -t overlay -o {layers} image {folder}/image",
            f"exec {CRUN} --cgroup-manager=disabled --root {folder}/crun run --no-pivot --bundle {folder} {folder.name}",
        ]
    )
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as pod_process,
    ):
        try:
            yield pod_process
        finally:
            pod_process.terminate()
            try:
                pod_process.wait(30)
            except subprocess.TimeoutExpired:
                pod_process.kill()
