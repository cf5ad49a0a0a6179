#!/bin/sh
# --hook: posts what the service or a sweep says to a Slack channel. The webhook's address is the first line of /etc/rankscope/hook/slack.url
# (RANKSCOPE_SECRETS names another folder): it is a secret, and comes into neither the command line nor a message. Ends within 20 s.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
url=$(head -n 1 "${RANKSCOPE_SECRETS:-/etc/rankscope/hook}/slack.url")
case $url in http://* | https://*) ;; *) url= ;; esac
case $url in '' | *[[:space:]\"\\]*) echo 'slack.url holds no address' >&2; exit 1 ;; esac

body=$(/usr/bin/python3 -I -c '
import json, sys
said = json.load(sys.stdin)
if "findings" in said:  # a sweep
    state, kind, words = said["summary"]["state"], "", ", ".join(sorted({f["id"] for f in said["findings"] if f["state"] == "critical"}))
else:
    state, kind, words = said["state"], said["kind"], said["words"]
if state == "ok" and kind != "over":
    sys.exit()
mark = ":white_check_mark:" if kind == "over" else ":red_circle:" if state == "critical" else ":large_yellow_circle:"
text = " ".join(filter(None, (said["host"], said.get("job") and "`%s`" % said["job"], words)))
for sign, escaped in ("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"):  # names of jobs mention nobody
    text = text.replace(sign, escaped)
print(json.dumps({"text": f"{mark} {text}"[:3000]}))
')
[ -n "$body" ] || exit 0

exec curl --silent --show-error --fail --output /dev/null --max-time "${RANKSCOPE_ANSWER_S:-8}" --retry 1 --retry-max-time 10 \
    --header 'Content-Type: application/json' --data-binary @/dev/fd/3 --config - 3<<BODY <<CONFIG
$body
BODY
url = "$url"
CONFIG
