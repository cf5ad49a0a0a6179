"""The command line of all campaigns: run what is left, keep it by commit and source, print a table, and end with what it comes to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from campaignkit import results
from campaignkit.campaign import Campaign, Judged
from campaignkit.results import LOCAL, RECORDED, Result
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_USAGE, LabError

_EPILOG = """
Results are kept by case, day and commit, with a digest of the sources that the case rests on. Where these change the result is stale:
it is named, the case is run anew, and --table and --report end with 1 until it is. A run may be interrupted; the same command goes on.

exit codes: 0 good, 1 not good (--table and --report: nor where anything is stale, or less was run than is asked for), 64 wrong usage,
69 something is missing, 77 not root"""


def main(argv: Sequence[str] | None = None) -> int:
    """`fuzz`, `chaos` or `soak`, and its options."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words else ""
    campaign = _campaign(name)
    args = _arguments(campaign, words)
    return ended(name, lambda: _asked(campaign, args), "the same command goes on")


def _campaign(name: str) -> Campaign:
    """Only the one that is asked for is loaded."""
    if name == "fuzz":
        from campaignkit.fuzz.campaign import Fuzz

        return Fuzz()
    if name == "chaos":
        from campaignkit.chaos.campaign import Chaos

        return Chaos()
    if name == "soak":
        from campaignkit.soak.campaign import Soak

        return Soak()
    print("campaign: fuzz, chaos or soak", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _arguments(campaign: Campaign, words: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog=f"scripts/{campaign.name}", epilog=campaign.epilog + _EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--only", "--target", "--kinds", nargs="+", default=[], metavar="CASE", help="these cases (--list)"
    )
    parser.add_argument(
        "--record", action="store_true", help="results go into the committed file, which all clones go on with"
    )
    parser.add_argument("--results", type=Path, help="the file of results (default campaign-out/results.jsonl)")
    parser.add_argument("--again", action="store_true", help="cases with problems are run anew")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of these cases")
    parser.add_argument("--json", type=Path, help="write the results of these cases there, too")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", action="store_true", help="only the table of what was run here")
    what.add_argument("--report", action="store_true", help="only the table of the committed file")
    what.add_argument("--list", action="store_true", help="the cases")
    campaign.options(parser)
    args = parser.parse_args(words)
    args.results = args.results or (RECORDED if args.record or args.report else LOCAL / "results.jsonl")
    known = campaign.cases()
    # A kind of faults stands for its cases: one for each command.
    args.cases = [case for case in known if not args.only or {case, case.split()[0]} & set(args.only)]
    if unknown := sorted(set(args.only) - {word for case in known for word in (case, case.split()[0])}):
        parser.error(f"no such case: {', '.join(unknown)}; --list names them")
    return args


def _asked(campaign: Campaign, args: argparse.Namespace) -> int:
    if args.list:
        print("\n".join(f"{case:28} {what}" for case, what in campaign.cases().items() if case in args.cases))
        return 0
    sources = campaign.sources(args.cases)
    if not (args.table or args.report):
        _run(campaign, args, sources)
    rows = [row for row in results.read(args.results) if row.campaign == campaign.name]
    rows = [row for row in rows if not args.only or row.case in args.cases]
    found = results.current(rows, campaign.name, sources)
    if args.json:
        args.json.write_text(json.dumps({case: asdict(row) for case, row in found.items()}, indent=1), encoding="utf-8")
    judged = campaign.judge(found, args)
    problems = [f"  {case}: {one}" for case, row in found.items() for one in row.problems]
    lacking = [*judged.lacking, *_too_few(campaign, args, found), *_stale(rows, campaign.name, sources)]
    print(
        "\n".join(
            [
                *campaign.table(found),
                "",
                *results.by_day(rows, campaign.name, sources),
                *problems,
                *judged.problems,
                *lacking,
            ]
        )
    )
    return _code(campaign, Judged((*problems, *judged.problems), tuple(lacking)), only_told=args.table or args.report)


def _code(campaign: Campaign, judged: Judged, *, only_told: bool) -> int:
    if judged.problems or (judged.lacking and only_told):
        return EXIT_NOT_GOOD_ENOUGH
    return campaign.lacking_code if judged.lacking else 0


def _run(campaign: Campaign, args: argparse.Namespace, sources: Mapping[str, str]) -> None:
    if args.fresh:
        results.forget(args.results, campaign.name, args.cases)
    done = results.current(results.read(args.results), campaign.name, sources)
    if args.again and (bad := [case for case in args.cases if case in done and done[case].problems]):
        results.forget(args.results, campaign.name, bad)
        done = {case: row for case, row in done.items() if case not in bad}
    counts = {case: done[case].count if case in done else 0.0 for case in args.cases}
    left = {case: count for case, count in counts.items() if count < campaign.wanted(args)}
    if not left:
        return

    def keep(row: Result) -> None:
        if sources[row.case] != row.source:
            raise LabError("the sources were changed meanwhile", "The same command goes on, with those of now.")
        results.add(args.results, row)

    try:
        campaign.run(left, sources, args, keep)
    except KeyboardInterrupt:
        print(f"{campaign.name}: interrupted; the same command goes on", file=sys.stderr)


def _too_few(campaign: Campaign, args: argparse.Namespace, found: Mapping[str, Result]) -> list[str]:
    wanted = campaign.wanted(args)
    few = [
        f"{case} {found[case].count if case in found else 0:,.0f}"
        for case in args.cases
        if case not in found or found[case].count < wanted
    ]
    return [f"fewer than {wanted:,.0f} of {len(few)} of {len(args.cases)} cases: {', '.join(few)}"] if few else []


def _stale(rows: Sequence[Result], name: str, sources: Mapping[str, str]) -> list[str]:
    old = sorted({row.case for row in results.stale(rows, name, sources)})
    return [f"stale, the sources of {len(old)} cases have changed since: {', '.join(old)}"] if old else []
