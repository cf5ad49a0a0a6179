#!/bin/sh
# Slurm prolog (Prolog= in slurm.conf): no job starts on a host with a critical finding.
# A prolog that fails makes Slurm drain the node, without any limit: a mistake that shows on every host would empty the cluster. So the
# hook drains, at most RANKSCOPE_MOST_DRAINED nodes, and this ends with 1 (the job is requeued) only where the node is drained already.
# Warnings and unknowns let the job start. Slurm runs this with an empty PATH.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
rankscope=${RANKSCOPE:-/opt/rankscope/.venv/bin/rankscope}
hook=${RANKSCOPE_HOOK:-/opt/rankscope/scripts/deploy/hooks/slurm-drain.sh}
[ -x "$rankscope" ] || exit 0 # not installed here: never stop jobs for that
cd / || exit 0
unset PYTHONHOME PYTHONPATH PYTHONSTARTUP
said=$("$rankscope" sweep --fail-on critical --skip job.orphans --hook "$hook" 2>/dev/null)
# Exit 2 and the word: Python itself ends with 2 where it cannot read its program. Anything else (another sweep is running,
# wrong configuration, no memory) must not keep jobs off.
[ $? -eq 2 ] || exit 0
case "
$said" in *"
critical: "*) ;; *) exit 0 ;; esac
mine=$(timeout --foreground -k 1 10 "${SCONTROL:-scontrol}" --oneliner show node "${SLURMD_NODENAME:-$(hostname -s)}" 2>/dev/null) || exit 0
state=${mine#* State=}
case ${state%% *} in *DRAIN*) exit 1 ;; esac
exit 0
