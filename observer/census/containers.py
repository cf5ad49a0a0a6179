"""Find the container of a process from its cgroup path. Pure.

Paths seen: /docker/<id>, /system.slice/docker-<id>.scope, /kubepods/burstable/pod<uid>/<id>,
/kubepods.slice/…/cri-containerd-<id>.scope, /…/crio-<id>.scope, /machine.slice/libpod-<id>.scope,
/lxc/<name>, /…/containerd/<id>, /slurm/…/job_1/step_0 (not a container), enroot and apptainer (no
cgroup of their own: not seen).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_ID = r"[0-9a-f]{64}"
_SCOPE = re.compile(rf"^(?P<runtime>[a-z][a-z-]*?)-(?:conmon-)?(?P<id>{_ID})(?:\.scope)?$")
_BARE = re.compile(rf"^(?P<id>{_ID})$")
# containerd in Kubernetes with the cgroupfs driver may use short ids for static pods.
_POD = re.compile(r"pod(?P<uid>[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_LXC = re.compile(r"^/(?:lxc(?:\.payload)?[./])(?P<id>[A-Za-z0-9_.-]{1,64})")
_RUNTIMES = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
    "nerdctl": "containerd",
}


@dataclass(frozen=True, slots=True)
class Container:
    """Container id (64 hex digits, or a name for lxc), the runtime, and the pod's uid in
    Kubernetes; '' where unknown.
    """

    container_id: str
    runtime: str
    pod: str


def find_container(paths: Iterable[str]) -> Container | None:
    """Find the innermost container in the cgroup paths of a process; None outside one."""
    found: Container | None = None
    for path in paths:
        container = _from_path(path[:4096])
        if container is not None and (found is None or (container.pod and not found.pod)):
            found = container
    return found


def _from_path(path: str) -> Container | None:
    """Find the innermost container in one cgroup path, with its runtime and pod; None if there is none."""
    pods = _POD.findall(path)
    pod = pods[-1].replace("_", "-") if pods else ""
    parts = [part for part in path.split("/") if part]
    for position in range(len(parts) - 1, -1, -1):
        scope = _SCOPE.match(parts[position])
        if scope is not None:
            return Container(scope["id"], _RUNTIMES.get(scope["runtime"], scope["runtime"]), pod)
        if _BARE.match(parts[position]):
            return Container(parts[position], _runtime_above(parts[:position], pod), pod)
    lxc = _LXC.match(path)
    return Container(lxc["id"], "lxc", "") if lxc else None


def _runtime_above(parts: list[str], pod: str) -> str:
    """Name the runtime of a container by the parts of the path above it, innermost first.

    Without one that is known: 'kubernetes' in a pod, else 'unknown'.
    """
    for part in reversed(parts):
        for prefix, runtime in _RUNTIMES.items():
            if part.startswith(prefix):
                return runtime
    return "kubernetes" if pod else "unknown"
