#!/bin/sh
# --hook: appends one line to /var/log/rankscope/lines.log (RANKSCOPE_LINES names another file) for each event that a rule over logs may act
# on: HyperPod's job monitoring, NVRx's restart agent, Fluent Bit, promtail (rules: log-rules.yaml beside this file). The line begins with
# `RankscopeError: ` for what stopped or broke, `RankscopeWarning: ` for what is slow, `RankscopeOver: ` for what ended. At 1 MiB the file
# becomes lines.log.1. Only root may write its folder.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022
/usr/bin/python3 -I -c '
import fcntl, json, os, re, sys
said = json.load(sys.stdin)
if "findings" in said:
    state = said["summary"]["state"]
    found = [one for one in said["findings"] if one["state"] == "critical"]
    reason = ",".join(sorted({one["id"] for one in found})) or "sweep"
    words = "; ".join("%s %s: %s" % (one["id"], one["instance"], one["why"]) for one in found)
else:
    state, words = said["state"], said["words"]
    first = ((said.get("verdict") or {}).get("suspects") or [{}])[0]
    subject = said if said.get("component") else first
    reason = "/".join(str(subject[name]) for name in ("component", "cause") if subject.get(name)) or said.get("alarm") or said["kind"]
    if said["kind"] == "over":
        state = "over"
mark = {"critical": "RankscopeError", "warning": "RankscopeWarning", "over": "RankscopeOver"}.get(state)
if mark is None:
    sys.exit()
lost = 0.0 if "findings" in said else float(first.get("lost_percent") or 0.0)

def word(value):  # of names that users choose nothing may look like another field, or like another line
    return re.sub(r"[^\w./:@,+-]+", "_", str(value))[:200] or "-"

line = "%s: reason=%s host=%s job=%s lost_percent=%.0f: %s" % (
    mark, word(reason), word(said["host"]), word(said.get("job") or ""), lost, " ".join(words.split())[:800])
# Only the mark may look like an exception.
head, words = line.split(": ", 1)
line = head + ": " + re.sub(r"(?i)(error|exception):", r"\1;", words)
path = os.environ.get("RANKSCOPE_LINES", "/var/log/rankscope/lines.log")
os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
lock = os.open(path + ".lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.path.exists(path) and os.path.getsize(path) > 1 << 20:
    os.replace(path, path + ".1")
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
os.write(file, (line + "\n").encode("utf-8", "replace"))
'
