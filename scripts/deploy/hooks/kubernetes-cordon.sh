#!/bin/sh
# --hook: cordons this node in Kubernetes. NODE_NAME comes from the pod's spec (kubernetes/daemonset.yaml); the service
# account needs `get` and `patch` on nodes (kubernetes/cordon-rbac.yaml).
set -eu
cat >/dev/null # the JSON of the sweep; nothing of it is needed here
exec "${KUBECTL:-kubectl}" cordon "${NODE_NAME:-$(hostname)}"
