#!/bin/sh
# --hook: gives what the service or a sweep says to Alertmanager, which groups, silences and passes it on. Its address, up to /api, is the
# first line of /etc/rankscope/hook/alertmanager.url (RANKSCOPE_SECRETS names another folder), a user and password may be in it: it comes
# into neither the command line nor a message. What nobody ends is over after RANKSCOPE_ALERT_HOURS (4). Ends within 20 s.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
url=$(head -n 1 "${RANKSCOPE_SECRETS:-/etc/rankscope/hook}/alertmanager.url")
case $url in http://* | https://*) ;; *) url= ;; esac
case $url in '' | *[[:space:]\"\\]*) echo 'alertmanager.url holds no address' >&2; exit 1 ;; esac

body=$(HOURS=${RANKSCOPE_ALERT_HOURS:-4} /usr/bin/python3 -I -c '
import json, os, sys
from datetime import datetime, timedelta, timezone
said = json.load(sys.stdin)
labels = {"host": said["host"]}
if "findings" in said:  # a sweep
    state, over, labels["alertname"] = said["summary"]["state"], False, "RankscopeSweep"
    words = ", ".join(sorted({f["id"] for f in said["findings"] if f["state"] == "critical"}))
else:
    state, over, words = said["state"], said["kind"] == "over", said["words"]
    labels["alertname"] = "RankscopeHardware" if said.get("drain_reason") else "RankscopeJob"
    if said.get("job"):
        labels["training_job"] = said["job"]
    if said.get("drain_reason") or said.get("alarm"):
        labels["reason"] = said.get("drain_reason") or said["alarm"]
if state == "ok" and not over:
    sys.exit()
now = datetime.now(timezone.utc)
ends = now if over else now + timedelta(hours=float(os.environ["HOURS"]))
# What is over ends under either severity: an alert is known by all of its labels.
print(json.dumps([
    {"labels": {**labels, "severity": severity}, "annotations": {"summary": words[:1000]}, "endsAt": ends.isoformat()}
    for severity in (("warning", "critical") if over else (state if state == "critical" else "warning",))
]))
')
[ -n "$body" ] || exit 0

exec curl --silent --show-error --fail --output /dev/null --max-time "${RANKSCOPE_ANSWER_S:-8}" --retry 1 --retry-max-time 10 \
    --header 'Content-Type: application/json' --data-binary @/dev/fd/3 --config - 3<<BODY <<CONFIG
$body
BODY
url = "${url%/}/api/v2/alerts"
CONFIG
