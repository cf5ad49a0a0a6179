"""`rankscope doctor`: can this host be observed?"""

from __future__ import annotations

import textwrap
from pathlib import Path

from rankscope.diagnose.cli.output import print_json
from rankscope.diagnose.text import clean
from rankscope.probes.errors import EXIT_HEALTHY, EXIT_MISSING

_MARKS = {True: "ok", False: "missing", None: "unknown"}


def run(*, as_json: bool, verbose: bool) -> int:
    """Print what was found; 69 if something required is missing."""
    from rankscope.observer.doctor import examine

    findings = examine(Path("/"))
    blocked = [finding for finding in findings if finding.required and finding.ok is False]
    if as_json:
        print_json(
            {
                "observable": not blocked,
                "findings": [
                    {"name": f.name, "ok": f.ok, "required": f.required, "detail": f.detail, "remedy": f.remedy}
                    for f in findings
                ],
            }
        )
        return EXIT_MISSING if blocked else EXIT_HEALTHY
    for finding in findings:
        mark = _MARKS[finding.ok] if finding.required or finding.ok is not False else "absent"
        head = f"{mark:8}{clean(finding.name, 24):25} "
        for line in textwrap.wrap(f"{head}{clean(finding.detail)}", 80, subsequent_indent=" " * 34):
            print(line)
        if finding.remedy and (finding.ok is not True or verbose):
            for line in textwrap.wrap(
                f"-> {clean(finding.remedy)}", 80, initial_indent=" " * 34, subsequent_indent=" " * 37
            ):
                print(line)
    print()
    if blocked:
        print(f"This host cannot be observed yet: {', '.join(clean(finding.name, 40) for finding in blocked)}.")
        return EXIT_MISSING
    print("This host can be observed.")
    return EXIT_HEALTHY
