"""`rankscope doctor`: check whether this host can be observed."""

from __future__ import annotations

import sys
from pathlib import Path

from rankscope.diagnose.face.cli.output import patience, print_json, tell, width_of, wrap
from rankscope.diagnose.face.documents.doctor import as_object, blocking, unnamed_causes
from rankscope.diagnose.text import clean, short
from rankscope.probes.base.errors import EXIT_HEALTHY, EXIT_MISSING

_MARK_END, _NAMES_END = 8, 35  # columns
_MARKS = {True: "ok", False: "missing", None: "unknown"}


def run(*, as_json: bool, verbose: bool) -> int:
    """Print the findings; return 69 if something required is missing, else 0."""
    from rankscope.observer.doctor import examine

    with patience("looking at this host, its kernel and its libraries"):
        findings = examine(Path("/"))
    blocked = blocking(findings)
    if as_json:
        print_json(as_object(findings))
        return EXIT_MISSING if blocked else EXIT_HEALTHY
    unnamed = unnamed_causes(findings)
    width = width_of(sys.stdout)
    indent = " " * (_NAMES_END if width > 2 * _NAMES_END - 10 else _MARK_END)  # next to the names, or below them
    for finding in findings:
        mark = _MARKS[finding.ok] if finding.required or finding.ok is not False else "absent"
        head = f"{mark:{_MARK_END}}{short(finding.name, _NAMES_END - _MARK_END - 1)}"
        said = wrap(clean(finding.detail), "", width - len(indent))
        if len(indent) == _NAMES_END:
            head += " " * (_NAMES_END - len(head)) + said.pop(0)
        print(head)
        if finding.remedy and finding.ok is not True:
            said += wrap(f"-> {clean(finding.remedy)}", "   ", width - len(indent))
        for line in said:
            print(f"{indent}{line}".rstrip())
    print()
    if blocked:
        tell(f"This host cannot be observed yet: {', '.join(clean(finding.name, 40) for finding in blocked)}.")
        return EXIT_MISSING
    if unnamed:
        causes = ", ".join(dict.fromkeys(f"{one.component}/{one.cause}" for one in unnamed))
        print("\n".join(wrap(f"This host can be observed in part: {causes} cannot be named.", "", width)))
        return EXIT_HEALTHY
    print("This host can be observed.")
    return EXIT_HEALTHY
