"""The limits of the host leave room.

Reads /proc/sys/fs/file-nr, the number of processes against kernel.pid_max and threads-max, HugePages in /proc/meminfo, and, on hosts
with InfiniBand, the "Max locked memory" of ranks found by their RANK variable: RDMA needs it unlimited or in the gigabytes.
Never critical: any user's program can use limits up.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.training import claims
from rankscope.probes.host.procfs import pids, proc_path, read_file
from rankscope.probes.ports.reader import read_ports

ID = "os.limits"
SETTINGS = {"used_percent": 90.0, "memlock_gb": 1.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield how much of file handles, pid_max and threads-max is used, and a low memlock limit; bad ones as warnings."""
    limit = context.number("used_percent")
    words = (context.text("proc/sys/fs/file-nr") or "").split()
    if len(words) == 3 and all(word.isdigit() for word in words) and int(words[2][:18]):
        # The default limit on 64 bits, 2^63 - 1, is never reached.
        percent = round(100 * int(words[0][:18]) / int(words[2]), 2)
        yield context.judged(
            percent, limit, float("inf"), "/proc/sys/fs/file-nr", instance="file handles", unit="%", what="used file handles",
            why="programs will fail to open files", action="Raise fs.file-max; find who leaks them (lsof).",
        )  # fmt: skip
    loads = (context.text("proc/loadavg") or "").split()
    threads = loads[3].partition("/")[2] if len(loads) > 3 else ""
    for name, path in (("pid_max", "proc/sys/kernel/pid_max"), ("threads-max", "proc/sys/kernel/threads-max")):
        most = context.integer(path)
        if most and threads.isdigit():
            yield context.judged(
                round(100 * int(threads[:12]) / most, 2), limit, float("inf"), f"/{path}", instance=name, unit="%", what="used",
                why="no thread can be started", action=f"Raise kernel.{name}; find who starts so many.",
            )  # fmt: skip
    yield from _memlock(context)


def _memlock(context: Context) -> Iterator[Finding]:
    """Yield one warning if a launched rank may lock too little memory for RDMA, on hosts with InfiniBand or RoCE."""
    if not context.shared.get("ib", lambda: read_ports(context.root, interfaces=False)):
        return
    for claim in context.shared.get("claims", lambda: claims(context.root, pids(context.root))).ranks:
        try:
            text = read_file(proc_path(context.root, claim.pid, "limits"), 8192).decode("ascii", "replace")
        except OSError:
            continue
        line = next((line for line in text.splitlines() if line.startswith("Max locked memory")), "")
        soft = line.removeprefix("Max locked memory").split()[:1]
        if soft and soft[0].isdigit() and int(soft[0][:19]) < context.number("memlock_gb") * 1e9:
            yield context.warning(
                f"/proc/{claim.pid}/limits", float(soft[0]), unit="bytes", instance="memlock",
                expected=f"unlimited, or at least {context.number('memlock_gb'):g} GB",
                why="RDMA cannot pin its buffers: NCCL falls back to TCP or fails",
                action="LimitMEMLOCK=infinity for the service (slurmd, containerd), ulimit -l unlimited.",
            )  # fmt: skip
            return
