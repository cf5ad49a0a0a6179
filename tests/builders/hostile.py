"""Windows of a job all of whose names mean harm."""

from __future__ import annotations

from dataclasses import replace

import builders
from builders import Job, build

from rankscope.observer.window.folder import Window

EVIL = (
    "</script><script>document.title='owned'</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "javascript:alert(1)",
    "{{ 7*7 }}{% raw %}", "]]><!--", "\u202egnp.exe", "\x1b[2J\x00", "&lt;b&gt;", "';alert(1)//", "\u2028</style><style>*{display:none}",
)  # fmt: skip


def hostile(case: Job) -> list[Window]:
    """The windows of a job all of whose names mean harm."""
    evil = "".join(EVIL)
    work = builders.Work("python", evil, 0, 56, file=f"/srv/{evil}.py", detail="")
    read = builders.Work("io", "read", 0, 40, detail=evil, caller=evil)
    columns = {"role": evil, "title": evil, "command": evil, "node": evil, "container": evil, "cpus": evil}
    job = replace(case, name=evil, extra={**case.extra, 3: [(work, 0.08), (read, 0.01)]})
    job.ranks_columns = {rank: {**case.ranks_columns.get(rank, {}), **columns} for rank in range(job.ranks)}
    job.counters = [
        {"rank": 3, "name": "cpu.taken_s", "comm": evil[:60], "pid": 7, "value": 3.0, "instance": evil},
        {"scope": "host", "name": evil[:60], "unit": evil[:30], "value": 1.0},
    ]
    return [replace(window, manifest=replace(window.manifest, notes=(evil,))) for window in build(job)]
