#!/bin/sh
# --hook: posts what the service or a sweep says to a Slack channel. The webhook's address is the first line of /etc/rankscope/hook/slack.url
# (RANKSCOPE_SECRETS names another folder): it is a secret, and comes into neither the command line nor a message. Ends within 20 s.
set -eu
. "$(dirname "$0")/notify-common.sh"
address slack.url

body=$(/usr/bin/python3 -I -c "$heard"'
if state == "ok" and not over:
    sys.exit()
mark = ":white_check_mark:" if over else ":red_circle:" if state == "critical" else ":large_yellow_circle:"
text = " ".join(filter(None, (said["host"], said.get("job") and "`%s`" % said["job"], words)))
for sign, escaped in ("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"):  # names of jobs mention nobody
    text = text.replace(sign, escaped)
print(json.dumps({"text": f"{mark} {text}"[:3000]}))
')
send --config - <<CONFIG
url = "$url"
CONFIG
