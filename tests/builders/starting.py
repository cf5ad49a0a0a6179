"""Windows of jobs that make no steps yet."""

from __future__ import annotations

from dataclasses import asdict

from builders import ROOT, Job, build, columns

from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame, StackTree

LOAD = StackFrame("load_checkpoint", "/srv/job/utils.py", 12)
BATON = StackFrame("FileBaton.wait", "/opt/venv/lib/python3.11/site-packages/torch/utils/file_baton.py", 40)
NOTHING = {"per_step_s": None, "per_step_sd_s": None}


def starting(at: list[tuple[str, str, str, tuple[StackFrame, ...], float]]) -> Window:
    """A window without steps: of each rank (kind, name, detail, frames below `train`, share of the window), and some computing."""
    window = build(Job(ranks=len(at)))[0]
    made = [row for row in window.patterns.to_pylist() if row["kind"] == "python" and row["name"] == "tokenize"]
    tree, rows = StackTree(), []
    for row, (kind, name, detail, frames, beta) in zip(made, at, strict=True):
        stack = (*ROOT, *frames)
        leaf = stack[-1]
        rows.append(row | NOTHING | {"beta": 1 - beta, "stack": tree.add(ROOT)})
        place = {"name": leaf.name if kind == "python" else name, "caller": "" if kind == "python" else leaf.name}
        where = {"file": leaf.file, "line": leaf.line, "stack": tree.add(stack), "beta": beta}
        rows.append(row | NOTHING | {"kind": kind, "detail": detail} | place | where)
    window = columns(columns(window, "steps", []), "patterns", rows)
    return columns(window, "stacks", [asdict(row) for row in tree.rows()])
