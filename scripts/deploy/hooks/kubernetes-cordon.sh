#!/bin/sh
# --hook: cordons this node in Kubernetes. NODE_NAME comes from the pod's spec (kubernetes/daemonset.yaml), the rights from
# kubernetes/cordon-rbac.yaml: every pod may cordon its own node and no other.
# At most RANKSCOPE_MOST_DRAINED nodes (3) at a time, counted as in slurm-drain.sh; what others cordoned is left as it is.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
most=${RANKSCOPE_MOST_DRAINED:-3}
kubectl=${KUBECTL:-kubectl}
node=${NODE_NAME:?NODE_NAME says which node this is}
us=rankscope-cordon
# Kubernetes knows who set a field, until somebody unsets it: the label stays when an operator uncordons, and says nothing of a later cordon.
ours="{.metadata.managedFields[?(@.manager==\"$us\")].fieldsV1.f:spec.f:unschedulable}"
cordoned= # whether a cordon of ours may be there that is not counted; its label is then "unsure", and "true" from then on
# Of the JSON of a sweep nothing is needed here; of what the service says only what has a drain_reason for this host is acted on.
meant=$(/usr/bin/python3 -I -c '
import json, sys
said = json.load(sys.stdin)
ours = said.get("drain_reason") and said.get("drain_host") == said.get("host")
print("yes" if said.get("schema") != "rankscope.watch/1" or ours else "no")
')
[ "$meant" = yes ] || exit 0

ask() { # all that is asked together ends within the 30 s that a hook has
    timeout --foreground -k 1 "${RANKSCOPE_ANSWER_S:-4}" "$kubectl" "$@"
}

nodes() { # with this label that nobody has uncordoned, by name
    all=$(ask get nodes -l "rankscope/cordoned$1" --field-selector=spec.unschedulable=true -o name) || exit
    printf '%s\n' "$all" | sed -n 's|^node/||p' | sort -u
}

patch() { # label, unschedulable
    ask patch node "$node" "--field-manager=$us" --type=merge -p "{\"metadata\":{\"labels\":{\"rankscope/cordoned\":\"$1\"}},\"spec\":{\"unschedulable\":$2}}"
}

end() { # a cordon that was not counted is taken back, whatever ends this
    code=$?
    trap - EXIT
    [ -z "$cordoned" ] || patch false null ||
        echo "the cordon could not be taken back; it is counted again when the hook is called again" >&2
    exit "$code"
}
trap end EXIT
trap 'exit 1' TERM INT HUP

keep() { # the cordon is counted: nobody takes it back any more
    patch true true
    cordoned=
    exit 0
}

# On a line of its own: in a test it would go unseen that nobody answered.
is=$(ask get node "$node" -o "jsonpath={.spec.unschedulable} $ours")
if [ "${is%% *}" = true ]; then
    case ${is#* } in *'{}'*) ;; *) exit 0 ;; esac
    uncounted=$(nodes =unsure)
    case "
$uncounted
" in *"
$node
"*) ;; *) exit 0 ;; esac
    # A hook of ours cordoned it and was killed before it had counted again. Of all such nodes the first by name stay, as many as there may be.
    cordoned=yes
    counted=$(nodes =true)
    case "
$(printf '%s\n%s\n' "$counted" "$uncounted" | grep . | head -n "$most")
" in *"
$node
"*) keep ;; esac
    echo "cordoned and taken back: without it there are $most or more" >&2
    exit 1
fi
before=$(nodes ' in (true,unsure)')
if [ "$(printf '%s' "$before" | grep -c .)" -ge "$most" ]; then
    echo "not cordoned: $most nodes are already, look at them first (RANKSCOPE_MOST_DRAINED)" >&2
    exit 1
fi
cordoned=yes
patch unsure true || {
    [ $? -ge 124 ] || cordoned= # it was refused; else nobody knows
    exit 1
}
# As in slurm-drain.sh: who sees too many, or can count no more, takes it back, and the next sweep tries again.
if ! after=$(nodes ' in (true,unsure)') || [ "$(printf '%s' "$after" | grep -c .)" -gt "$most" ]; then
    echo "cordoned and taken back: with those of the same moment there are more than $most" >&2
    exit 1
fi
keep
