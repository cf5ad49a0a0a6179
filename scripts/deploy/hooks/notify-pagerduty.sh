#!/bin/sh
# --hook: opens an incident in PagerDuty for what is critical, and resolves it when it is over (Events API, version 2). The integration's
# routing key is the first line of /etc/rankscope/hook/pagerduty.key (RANKSCOPE_SECRETS names another folder); it is sent in the body alone.
# RANKSCOPE_PAGE_FROM=warning: slow jobs as well. RANKSCOPE_PAGERDUTY_URL: another address. Ends within 20 s.
set -eu
. "$(dirname "$0")/notify-common.sh"
key=$(secret pagerduty.key)
case $key in '' | *[!0-9A-Za-z_-]*) echo 'pagerduty.key holds no routing key' >&2; exit 1 ;; esac

# The key goes by the environment, which only root reads.
body=$(RANKSCOPE_KEY=$key FROM=${RANKSCOPE_PAGE_FROM:-critical} /usr/bin/python3 -I -c "$heard"'
what = kind if swept else said.get("drain_reason") or said.get("alarm") or kind
if not over and state not in ("critical", os.environ["FROM"]):
    sys.exit()
event = {
    "routing_key": os.environ["RANKSCOPE_KEY"],
    "event_action": "resolve" if over else "trigger",
    "dedup_key": " ".join(("rankscope", said["host"], said.get("job") or "", what))[:255],
}
if not over:
    summary = " ".join(filter(None, (said["host"], said.get("job"), words)))[:1024]
    event["payload"] = {"summary": summary, "source": said["host"], "severity": state, "component": said.get("job") or said["host"],
                        "custom_details": {"words": words, "advice": "rankscope blackbox on the host has the minutes before"}}
print(json.dumps(event))
')
send "${RANKSCOPE_PAGERDUTY_URL:-https://events.pagerduty.com/v2/enqueue}"
