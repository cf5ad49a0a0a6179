#!/bin/sh
# Slurm prolog (Prolog= in slurm.conf): no job starts on a host with a critical finding.
# A prolog that fails makes Slurm drain the node and requeue the job; warnings and unknowns let the job start.
# Slurm runs this with an empty PATH.
rankscope=${RANKSCOPE:-/opt/rankscope/.venv/bin/rankscope}
[ -x "$rankscope" ] || exit 0 # not installed here: never stop jobs for that
"$rankscope" sweep --fail-on critical --skip job.orphans >/dev/null 2>&1
code=$?
# Exit 2 is a critical finding. Anything else (another sweep is running, wrong configuration) must not drain the cluster.
[ "$code" -ne 2 ] || exit 1
exit 0
