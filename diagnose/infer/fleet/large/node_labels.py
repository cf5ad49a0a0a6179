"""Groups of Kubernetes nodes (rack, switch, file system), from the labels in `kubectl get nodes -o
json`. Pure.

A label's key gives the kind: keys of NVIDIA's Topograph (both generations), of Amazon's and
Google's clusters, of the GPU operator, and any that ends with rack, switch or filesystem, like
`example.com/rack`. The host is `kubernetes.io/hostname`, else the node's name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_KINDS = {
    "rack": re.compile(
        r"network\.topology\.nvidia\.com/accelerator|accelerator\.topograph\.run/(sub-)?domain|nvidia\.com/gpu\.clique|(.*[/.-])?rack"
    ),
    "switch": re.compile(
        r"network\.topology\.nvidia\.com/(leaf|spine|core|block|datacenter)|fabric\.topograph\.run/tier-\d+"
        r"|topology\.k8s\.aws/network-node-layer-\d|cloud\.google\.com/gce-topology-(sub)?block|(.*[/.-])?switch"
    ),
    "filesystem": re.compile(r"(.*[/.-])?filesystem"),
}
_HOST = "kubernetes.io/hostname"


def is_nodes(text: str) -> bool:
    """Whether a text looks like JSON, which no other topology format does."""
    return text.lstrip()[:1] == "{"


def members(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, group name, host) for each label that names a group.

    ValueError if not a list of nodes.
    """
    try:
        nodes = json.loads(text)["items"]
        for node in nodes:
            yield from _of_node(node["metadata"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"no list of nodes as `kubectl get nodes -o json` prints it ({type(error).__name__})"
        ) from error


def _of_node(about: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, group name, host) for each label of one node that names a group; `about`: its metadata."""
    labels = about.get("labels") or {}
    host = str(labels.get(_HOST) or about["name"])
    for key, value in sorted(labels.items()):
        for kind, keys in _KINDS.items():
            if value and keys.fullmatch(str(key)):
                yield kind, str(value), host
