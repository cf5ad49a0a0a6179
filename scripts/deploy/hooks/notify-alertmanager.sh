#!/bin/sh
# --hook: gives what the service or a sweep says to Alertmanager, which groups, silences and passes it on. Its address, up to /api, is the
# first line of /etc/rankscope/hook/alertmanager.url (RANKSCOPE_SECRETS names another folder), a user and password may be in it: it comes
# into neither the command line nor a message. What nobody ends is over after RANKSCOPE_ALERT_HOURS (4). Ends within 20 s.
set -eu
. "$(dirname "$0")/notify-common.sh"
address alertmanager.url

body=$(HOURS=${RANKSCOPE_ALERT_HOURS:-4} /usr/bin/python3 -I -c "$heard"'
from datetime import datetime, timedelta, timezone
labels = {"host": said["host"]}
if swept:
    labels["alertname"] = "RankscopeSweep"
else:
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
send --config - <<CONFIG
url = "${url%/}/api/v2/alerts"
CONFIG
