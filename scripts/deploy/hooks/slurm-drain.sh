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
drained() { # names of the nodes that a hook drained and nobody has resumed
    all=$("$scontrol" --oneliner show node) || exit
    printf '%s\n' "$all" | sed -n 's/^NodeName=\([^ ]*\) .*State=[^ ]*DRAIN.* Reason=rankscope: .*/\1/p' | sort -u
}

mine=$("$scontrol" --oneliner show node "$node")
state=${mine#* State=}
case ${state%% *} in *DRAIN*|*DOWN*|*FAIL*) exit 0 ;; esac
before=$(drained)
if [ "$(printf '%s' "$before" | grep -c .)" -ge "$most" ]; then
    echo "not drained: $most nodes are already, look at them first (RANKSCOPE_MOST_DRAINED)" >&2
    exit 1
fi
"$scontrol" update "NodeName=$node" State=DRAIN "Reason=$reason"
# Several hosts may have counted at the same moment. Whoever drained last sees all of them: who sees too many, or can count no more, takes
# it back, and the next sweep tries again. UNDRAIN, not RESUME: that would bring a node into service that somebody set DOWN meanwhile.
if ! after=$(drained) || [ "$(printf '%s' "$after" | grep -c .)" -gt "$most" ]; then
    "$scontrol" update "NodeName=$node" State=UNDRAIN
    echo "drained and taken back: with those of the same moment there are more than $most" >&2
    exit 1
fi
