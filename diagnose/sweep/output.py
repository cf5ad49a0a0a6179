"""Format a sweep as text, JSON (rankscope.sweep/1), Prometheus textfile and syslog lines, without printing."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rankscope.diagnose.severity import CRITICAL, OK, STATES, UNKNOWN, WARNING
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.text import clean, clean_all
from rankscope.observer.window.staging import put_file, remove_left_files
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import opened_folder

SCHEMA = "rankscope.sweep/1"
_CODES = {OK: 0, WARNING: 1, CRITICAL: 2, UNKNOWN: 3}
_ORDER = {CRITICAL: 0, WARNING: 1, UNKNOWN: 2, OK: 3}


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Convert to one JSON object: schema, host, time, findings, summary, notes.

    All text cleaned.
    """
    counts = Counter(finding.state for finding in sweep.findings)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "host": sweep.host,
        "time": _iso(sweep.time_s),
        "findings": [
            {
                "id": finding.id,
                "state": finding.state,
                "instance": finding.instance,
                "read": finding.read,
                "value": finding.value,
                "unit": finding.unit,
                "expected": finding.expected,
                "why": finding.why,
                "since": _iso(finding.since_s) if finding.since_s is not None else None,
                "action": finding.action,
            }
            for finding in sweep.findings
        ],
        "summary": {
            "state": sweep.state,
            "counts": {state: counts[state] for state in STATES},
            "checks": sweep.checks,
            "not_applicable": [{"id": identifier, "why": why} for identifier, why in sweep.skipped],
            "ignored": sweep.ignored,
            "seconds": round(sweep.seconds, 3),
            "cpu_seconds": round(sweep.cpu_seconds, 3),
        },
        "notes": list(sweep.notes),
    }
    return dict(clean_all(content))


def as_text(sweep: Sweep, verbose: bool = False, width: int | None = None) -> Iterator[str]:
    """Yield text lines: problems first, then one line per check; with `verbose` every finding.

    `width`: columns of the terminal, None if it is none. Only the last line begins with the state:
    scripts that drain on an exit code look for it, since an interpreter that cannot start has exit
    codes too. Without a terminal that line is never wrapped.
    """
    return (clean(line) for line in _text(sweep, verbose, width))


def _text(sweep: Sweep, verbose: bool, terminal: int | None) -> Iterator[str]:
    """Yield the lines of `as_text`, not cleaned yet. `terminal`: its columns, None if there is none."""
    width = 80 if terminal is None else terminal
    wrong = sorted((one for one in sweep.findings if one.state != OK), key=lambda one: (_ORDER[one.state], one.id))
    for finding in wrong:
        yield from _lines(finding, sweep.time_s, width)
    fine: dict[str, list[Finding]] = {}
    bad_ids = {finding.id for finding in wrong}
    for finding in sweep.findings:
        if finding.state == OK:
            fine.setdefault(finding.id, []).append(finding)
    if verbose:
        for findings in fine.values():
            for one in findings:
                said = f"{'ok':10}{one.id:20} {one.instance:20} {_value(one)}{'  ' + one.why if one.why else ''}"
                yield from _wrap(said, " " * 13, width)
        for identifier, why in sweep.skipped:
            yield from _wrap(f"{'n/a':10}{identifier:20} {why}", " " * 13, width)
    else:
        quiet = [identifier for identifier in fine if identifier not in bad_ids]
        if quiet:
            yield from _wrap("ok        " + ", ".join(quiet), " " * 10, width)
        if sweep.skipped:
            yield from _wrap("n/a       " + ", ".join(identifier for identifier, _ in sweep.skipped), " " * 10, width)
    for note in sweep.notes:
        yield from _wrap(f"note      {note}", " " * 10, width)
    counts = Counter(finding.state for finding in sweep.findings)
    told = ", ".join(f"{counts[state]} {state}" for state in (CRITICAL, WARNING, UNKNOWN, OK) if counts[state])
    apply = sweep.checks - len(sweep.skipped)
    last = f"{sweep.state}: {sweep.host}: {told or 'no'} findings of {apply} checks in {sweep.seconds:.1f} s"
    last += f"; {len(sweep.skipped)} n/a" if sweep.skipped else ""
    yield from [last] if terminal is None else _wrap(last, " " * 10, width)


def syslog_lines(sweep: Sweep) -> Iterator[tuple[int, str]]:
    """Yield (syslog priority, line) for every problem, and one for the whole sweep."""
    priorities = {CRITICAL: 2, WARNING: 4, UNKNOWN: 5, OK: 6}
    for finding in sweep.findings:
        if finding.state != OK:
            yield (
                priorities[finding.state],
                clean(f"{finding.state} {finding.id} {finding.instance or '-'}: {_value(finding)}: {finding.why}", 900),
            )
    yield priorities[sweep.state], f"sweep {sweep.state}: {len(sweep.findings)} findings of {sweep.checks} checks"


def as_prometheus(sweep: Sweep, per_process: Collection[str] = ()) -> str:
    """Convert to Prometheus text format.

    The label is `device`, as a scrape sets `instance` itself. Process instances are merged under
    their check, to limit labels.
    """
    worst: dict[tuple[str, str], int] = {}
    values: dict[tuple[str, str, str], float] = {}
    for finding in sweep.findings:
        instance = "" if finding.id in per_process else finding.instance
        key = (finding.id, instance)
        code = _CODES[finding.state]
        if key not in worst or _ORDER[finding.state] < _ORDER[STATES[worst[key]]]:
            worst[key] = code
        if isinstance(finding.value, (int, float)) and finding.id not in per_process:
            values[finding.id, instance, finding.unit] = float(finding.value)
    counts = Counter(finding.state for finding in sweep.findings)
    lines = [
        "# HELP rankscope_sweep_state State of a check: 0 ok, 1 warning, 2 critical, 3 unknown.",
        "# TYPE rankscope_sweep_state gauge",
        *(
            f"rankscope_sweep_state{{check={_label(check)},device={_label(one)}}} {code}"
            for (check, one), code in worst.items()
        ),
        "# HELP rankscope_sweep_value What a check read, in the unit of its label.",
        "# TYPE rankscope_sweep_value gauge",
        *(
            f"rankscope_sweep_value{{check={_label(check)},device={_label(one)},unit={_label(unit)}}} {value:.12g}"
            for (check, one, unit), value in values.items()
        ),
        "# HELP rankscope_sweep_findings Findings of the last sweep by state.",
        "# TYPE rankscope_sweep_findings gauge",
        *(f"rankscope_sweep_findings{{state={_label(state)}}} {counts[state]}" for state in STATES),
    ]
    for name, help_text, value in (
        ("last_run_timestamp_seconds", "When the last sweep ran.", sweep.time_s),
        ("duration_seconds", "How long the last sweep took.", sweep.seconds),
        ("cpu_seconds", "CPU time of the last sweep's checks.", sweep.cpu_seconds),
    ):
        lines += [f"# HELP rankscope_sweep_{name} {help_text}", f"# TYPE rankscope_sweep_{name} gauge"]
        lines.append(f"rankscope_sweep_{name} {value:.3f}")
    return "\n".join(lines) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, readable by others (an exporter).

    Raises OutputFailed, without partial files.
    """
    try:
        with opened_folder(path.parent, of_others=True) as folder:
            remove_left_files(folder)  # remains of a service that was killed while writing
            put_file(folder, path.name, lambda file: file.write(text.encode()), public=True, lasting=False)
    except OSError as error:
        raise OutputFailed(f"{path}: {error.strerror}") from error


def _lines(finding: Finding, now_s: float, width: int) -> Iterator[str]:
    """Yield the lines of one finding: what is wrong, expected, why and since when, and what to do."""
    value = f" {_value(finding)}" if finding.value is not None else ""
    head = f"{finding.state.upper():10}{finding.id}{' ' + finding.instance if finding.instance else ''}:{value}"
    yield from _wrap(head, " " * 10, width)
    since = ""
    if finding.since_s is not None and now_s - finding.since_s >= 60:
        since = f" (since {time.strftime('%Y-%m-%d %H:%M', time.localtime(finding.since_s))})"
    for word, text in (("expected", finding.expected), ("", finding.why + since), ("->", finding.action)):
        if text.strip():
            indent = " " * 10 + (word + " " if word else "")
            yield from _wrap(f"{indent}{text.strip()}", " " * 13, width)


def _value(finding: Finding) -> str:
    """Format a finding's value with its unit; '' without a value."""
    if finding.value is None:
        return ""
    value = finding.value if isinstance(finding.value, str) else f"{finding.value:.10g}"
    return f"{value} {finding.unit}".strip() if finding.unit not in ("%",) else f"{value} %"


def _label(text: str) -> str:
    """Quote and escape the value of a Prometheus label."""
    escaped = clean(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _wrap(text: str, indent: str, width: int) -> list[str]:
    """Split a text into lines of `width` columns without breaking words."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _iso(time_s: float) -> str:
    """Format Unix seconds as ISO 8601 in UTC; the epoch for times that cannot be formatted."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00Z"
