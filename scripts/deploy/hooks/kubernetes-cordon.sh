#!/bin/sh
# --hook: cordons this node in Kubernetes. NODE_NAME comes from the pod's spec (kubernetes/daemonset.yaml), the rights from
# kubernetes/cordon-rbac.yaml: every pod may cordon its own node and no other.
# At most RANKSCOPE_MOST_DRAINED nodes (3) at a time, as in slurm-drain.sh; cordoned ones are left as they are.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
most=${RANKSCOPE_MOST_DRAINED:-3}
kubectl=${KUBECTL:-kubectl}
node=${NODE_NAME:?NODE_NAME says which node this is}
# Of the JSON of a sweep nothing is needed here; of what the service says only what has a drain_reason for this host is acted on.
meant=$(/usr/bin/python3 -I -c '
import json, sys
said = json.load(sys.stdin)
ours = said.get("drain_reason") and said.get("drain_host") == said.get("host")
print("yes" if said.get("schema") != "rankscope.watch/1" or ours else "no")
')
[ "$meant" = yes ] || exit 0

cordoned() { # nodes that a hook cordoned and nobody has uncordoned
    all=$("$kubectl" get nodes -l rankscope/cordoned=true --field-selector=spec.unschedulable=true -o name) || exit
    printf '%s\n' "$all" | sed -n 's|^node/||p' | sort -u
}

[ "$("$kubectl" get node "$node" -o 'jsonpath={.spec.unschedulable}')" != true ] || exit 0
before=$(cordoned)
if [ "$(printf '%s' "$before" | grep -c .)" -ge "$most" ]; then
    echo "not cordoned: $most nodes are already, look at them first (RANKSCOPE_MOST_DRAINED)" >&2
    exit 1
fi
"$kubectl" patch node "$node" --type=merge -p '{"metadata":{"labels":{"rankscope/cordoned":"true"}},"spec":{"unschedulable":true}}'
# As in slurm-drain.sh: who sees too many, or can count no more, takes it back, and the next sweep tries again.
if ! after=$(cordoned) || [ "$(printf '%s' "$after" | grep -c .)" -gt "$most" ]; then
    "$kubectl" patch node "$node" --type=merge -p '{"spec":{"unschedulable":null}}'
    echo "cordoned and taken back: with those of the same moment there are more than $most" >&2
    exit 1
fi
