#!/bin/sh
# --hook: drains this node in Slurm. The JSON of the sweep comes on standard input; the reason names the critical checks. Of what the
# service says (`rankscope watch --hook`) only what has a drain_reason for this host drains: a job that hangs is no reason.
# At most RANKSCOPE_MOST_DRAINED nodes (3) at a time: a mistake that shows on every host at once, a new driver say, must not empty the
# cluster. Nodes that somebody drained or took down already are left as they are.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
most=${RANKSCOPE_MOST_DRAINED:-3}
scontrol=${SCONTROL:-scontrol}
node=${SLURMD_NODENAME:-$(hostname -s)}
unsure=' (not counted yet)' # at the end of the reason, until it is known that there are not too many
drained=                    # whether a drain of ours may be there that is not counted

reason=$(/usr/bin/python3 -I -c '
import json, sys
said = json.load(sys.stdin)
if said.get("schema") == "rankscope.watch/1":
    print(said["drain_reason"][:200] if said.get("drain_reason") and said.get("drain_host") == said["host"] else "")
else:
    found = [f for f in said["findings"] if f["state"] == "critical"]
    print("rankscope: " + ", ".join(sorted({f["id"] for f in found}))[:200])
')
[ -n "$reason" ] || exit 0

ask() { # all that is asked together ends within the 30 s that a hook has
    timeout --foreground -k 1 "${RANKSCOPE_ANSWER_S:-4}" "$scontrol" "$@"
}

nodes() { # that a hook drained and nobody has resumed: "1 NAME" of those that were counted, then "2 NAME" of the others, by name
    all=$(ask --oneliner show node) || exit
    ours='s/^NodeName=\([^ ]*\) .*State=[^ ]*DRAIN.* Reason=rankscope: .*'
    printf '%s\n' "$all" | sed -n -e "$ours(not counted yet).*/2 \1/p" -e t -e "$ours/1 \1/p" | sort -u
}

end() { # a drain that was not counted is taken back, whatever ends this. UNDRAIN, not RESUME: that would bring a node into service that
    # somebody set DOWN meanwhile.
    code=$?
    trap - EXIT
    [ -z "$drained" ] || ask update "NodeName=$node" State=UNDRAIN ||
        echo "the drain could not be taken back; it is counted again when the hook is called again" >&2
    exit "$code"
}
trap end EXIT
trap 'exit 1' TERM INT HUP

keep() { # the drain is counted: nobody takes it back any more
    ask update "NodeName=$node" State=DRAIN "Reason=$reason"
    drained=
    exit 0
}

mine=$(ask --oneliner show node "$node")
state=${mine#* State=}
case ${state%% *} in
*DOWN* | *FAIL*) exit 0 ;;
*DRAIN*)
    case $mine in *" Reason=rankscope: "*"$unsure"*) ;; *) exit 0 ;; esac
    # A hook of ours drained it and was killed before it had counted again. Of all such nodes the first by name stay, as many as there may be.
    drained=yes
    counted=$(nodes)
    case "
$(printf '%s\n' "$counted" | head -n "$most")
" in *"
2 $node
"*) keep ;; esac
    echo "drained and taken back: without it there are $most or more" >&2
    exit 1
    ;;
esac
before=$(nodes)
if [ "$(printf '%s' "$before" | grep -c .)" -ge "$most" ]; then
    echo "not drained: $most nodes are already, look at them first (RANKSCOPE_MOST_DRAINED)" >&2
    exit 1
fi
drained=yes
ask update "NodeName=$node" State=DRAIN "Reason=$reason$unsure" || {
    [ $? -ge 124 ] || drained= # it was refused; else nobody knows
    exit 1
}
# Several hosts may have counted at the same moment. Whoever drained last sees all of them: who sees too many, or can count no more, takes
# it back, and the next sweep tries again.
if ! after=$(nodes) || [ "$(printf '%s' "$after" | grep -c .)" -gt "$most" ]; then
    echo "drained and taken back: with those of the same moment there are more than $most" >&2
    exit 1
fi
keep
