#!/bin/sh
# Slurm prolog (Prolog= in slurm.conf): no job starts on a host with a critical finding.
# A prolog that fails makes Slurm drain the node and requeue the job; warnings and unknowns let the job start.
# Slurm runs this with an empty PATH.
rankscope=${RANKSCOPE:-/opt/rankscope/.venv/bin/rankscope}
[ -x "$rankscope" ] || exit 0 # not installed here: never stop jobs for that
cd / || exit 0
unset PYTHONHOME PYTHONPATH PYTHONSTARTUP
said=$("$rankscope" sweep --fail-on critical --skip job.orphans 2>/dev/null)
# Exit 2 and the word: Python itself ends with 2 where it cannot read its program. Anything else (another sweep is running,
# wrong configuration, no memory) must not drain the cluster.
[ $? -eq 2 ] || exit 0
case "
$said" in *"
critical: "*) exit 1 ;; esac
exit 0
