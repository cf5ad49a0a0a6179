# Read by the notify-*.sh beside it, which need it: an address that is a secret, what was said, one request with $body.
# shellcheck shell=sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# secret FILE: its first line.
secret() {
    head -n 1 "${RANKSCOPE_SECRETS:-/etc/rankscope/hook}/$1"
}

# address FILE: sets $url to the address in it. It goes to curl by `--config -`: into no command line, and into no message.
address() {
    url=$(secret "$1")
    case $url in http://* | https://*) ;; *) url= ;; esac
    case $url in '' | *[[:space:]\"\\]*) echo "$1 holds no address" >&2; exit 1 ;; esac
}

# What each of them does first in Python: `state`, `kind` and `words` of an event of the service, or of a sweep.
heard='
import json, os, sys
said = json.load(sys.stdin)
swept = "findings" in said
if swept:
    state, kind, words = said["summary"]["state"], "sweep", ", ".join(sorted({f["id"] for f in said["findings"] if f["state"] == "critical"}))
else:
    state, kind, words = said["state"], said["kind"], said["words"]
over = kind == "over"
'

# send WORDS OF CURL: posts $body, unless there is none.
send() {
    [ -n "$body" ] || exit 0
    exec curl --silent --show-error --fail --output /dev/null --max-time "${RANKSCOPE_ANSWER_S:-8}" --retry 1 --retry-max-time 10 \
        --header 'Content-Type: application/json' --data-binary @/dev/fd/3 "$@" 3<<BODY
$body
BODY
}
