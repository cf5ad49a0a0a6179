"""The command line of scripts/corpus."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from corpuskit import blind, causes, files, for_readers, moved, tables
from corpuskit.archive import HOME, SUFFIX, Corpus, archives, cases_in, name_of, opened, pack, unpack
from corpuskit.case import Case
from corpuskit.from_labs import Recording, cases
from corpuskit.judging import TODAY, judges
from corpuskit.paths import Replacements
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_USAGE, LabError
from rankscope.observer.window.folder import read_window

EPILOG = """examples:
  scripts/corpus add jobs-1 lab-out/jobs --beside-work      kept cases of a lab into an archive (made if there is none)
  scripts/corpus list                                       every case with its truth
  scripts/corpus judge --json now.json                      all cases judged: tables per kind and job, lost time, calibration
  scripts/corpus judge --only cpu --bad                     only keys with "cpu", and what was said where it was not right
  scripts/corpus judge --with rankscope.diagnose.infer.solve.other:diagnose --json other.json
                                                            another diagnoser, in the shadow of today's
  scripts/corpus get gil-hog-weak /tmp/look                 unpack cases, for rankscope diagnose
  scripts/corpus texts /tmp/read --seed 7                   60 verdicts drawn at random as a terminal shows them, for a stranger to read
  scripts/corpus judge --hold                               write the table that the tests hold later versions to, and counted.json
  scripts/corpus blind --every 10                           each source knocked out: what is said without it
  scripts/corpus compare before.json now.json               which cases changed
  scripts/corpus move --constants SCORE_LEAST               a constant moved by 30 %: which verdicts change
  scripts/corpus calibrate                                  the map from scores to confidences, fitted anew

exit codes: 0 good, 1 not as good as the table (judge) or worse than before (compare), 64 wrong usage"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return ended("corpus", lambda: int(args.act(args)), "nothing is half written")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="scripts/corpus",
        description=sys.modules["corpuskit"].__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("add", help="put kept cases of the labs into an archive")
    add.add_argument("archive", help="its name, or a file")
    add.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of scripts/lab --keep")
    add.add_argument("--beside-work", action="store_true", help="other work ran on that machine meanwhile")
    add.add_argument("--code", default="", help="version that recorded them (default: what git says of DIR)")
    add.add_argument("--replace", action="append", default=[], metavar="OLD=NEW", help="a path of that machine")
    add.set_defaults(act=_add)
    listed = commands.add_parser("list", help="what cases there are")
    _which(listed)
    listed.set_defaults(act=_list)
    get = commands.add_parser("get", help="unpack cases, for rankscope diagnose DIR/ARCHIVE/NAME/windows/case")
    get.add_argument("only", metavar="TEXT", help="cases with this in archive/name, kind or job")
    get.add_argument("into", type=Path, metavar="DIR")
    get.add_argument("--archives", type=Path, default=HOME, metavar="DIR", help="where they lie (tests/data/windows)")
    get.set_defaults(act=_get)
    texts = commands.add_parser(
        "texts", help="what a terminal shows of cases drawn at random, for who does not know the truth"
    )
    texts.add_argument("into", type=Path, metavar="DIR")
    texts.add_argument(
        "--seed", type=int, required=True, help="of the draw: texts that were mended after a reading need another"
    )
    texts.add_argument("--count", type=int, default=60, metavar="N", help="so many (default 60)")
    texts.add_argument("--tables", action="store_true", help="what was recorded, and not what is said of it")
    _where(texts)
    texts.set_defaults(act=_texts)
    judge = commands.add_parser("judge", help="judge all cases and count")
    _which(judge)
    judge.add_argument("--json", type=Path, metavar="FILE", help="write every answer and every table")
    judge.add_argument("--bad", action="store_true", help="say of each case that is not right first what was said")
    judge.add_argument(
        "--hold",
        action="store_true",
        help=f"write {files.HELD.name}, which later versions are held to, and what `rankscope causes` shows",
    )
    judge.set_defaults(act=_judge)
    blinded = commands.add_parser("blind", help="judge cases with each source knocked out")
    _where(blinded)
    blinded.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth case")
    blinded.add_argument("--bad", action="store_true", help="print each verdict that is wrong, or names another rank")
    blinded.set_defaults(act=_blind)
    compare = commands.add_parser("compare", help="which cases changed between two judgings")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    compare.set_defaults(act=_compare)
    move = commands.add_parser("move", help="move each constant of the diagnoser: which verdicts change")
    _which(move)
    move.add_argument("--constants", default="", metavar="TEXT", help="those with this in module:NAME (default: all)")
    move.add_argument("--by", type=float, default=moved.BY, metavar="X", help="times 1 + X and 1 - X (default 0.3)")
    move.add_argument("--verdicts", action="store_true", help="print every verdict that changes")
    move.set_defaults(act=_move)
    calibrate = commands.add_parser("calibrate", help="fit the map from scores to confidences anew, and print it")
    _which(calibrate)
    calibrate.set_defaults(act=_calibrate)
    return parser


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archives", type=Path, default=HOME, metavar="DIR", help="where they lie (tests/data/windows)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in archive/name, kind or job")


def _which(parser: argparse.ArgumentParser) -> None:
    _where(parser)
    parser.add_argument(
        "--with", dest="diagnoser", default=TODAY, metavar="MODULE:FUNCTION", help=f"the diagnoser (default {TODAY})"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="that judge")


def chosen(corpus: Corpus, text: str) -> list[Case]:
    found = [case for case in corpus.cases if _is_asked(case, text)]
    if not found:
        raise LabError(f"no case has {text!r} in its name", exit_code=EXIT_USAGE)
    return found


def _is_asked(case: Case, text: str) -> bool:
    return any(text in word for word in (case.key, case.kind, case.job))


def _add(args: argparse.Namespace) -> int:
    place = Path(args.archive) if args.archive.endswith(SUFFIX) else HOME / f"{args.archive}{SUFFIX}"
    pairs = []
    for text in args.replace:
        old, equals, new = text.partition("=")
        if not (old and equals):
            raise LabError(f"--replace {text}: not OLD=NEW", exit_code=EXIT_USAGE)
        pairs.append((old, new))
    replacements = Replacements(tuple(pairs))
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        there = Path(folder) / name_of(place)
        known = {case.name: case for case in (unpack(place, there) if place.exists() else [])}
        before = len(known)
        recording = Recording(name_of(place), not args.beside_work, args.code)
        for source in args.folders:
            for case in cases(source, recording, there, replacements):
                known[case.name] = case
        if replacements.strange:
            roots = ", ".join(f"/{root}" for root in sorted(replacements.strange))
            raise LabError(f"the windows name paths of this machine, below {roots}", "Give --replace.", EXIT_USAGE)
        pack(place, known.values(), there)
    windows = len({one for case in known.values() for one in (*case.windows, *case.baseline)})
    size = place.stat().st_size / 1024
    doubtful = sum(bool(case.doubt) for case in known.values())
    unsteady = sum(bool(case.unsteady) for case in known.values())
    print(
        f"{place.name}: {len(known)} cases ({before} before), {doubtful} of doubtful truth, {unsteady} of doubtful lost time; "
        f"{windows} windows, "
        f"{size:.0f} KB, {size / max(windows, 1):.1f} KB per window"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    with opened(archives(args.archives)) as corpus:
        for case in chosen(corpus, args.only):
            truth = case.truth
            steps = " → ".join(f"{1e3 * value:.0f}" if value else "none" for value in (case.healthy_s, case.during_s))
            who = f" ranks {','.join(map(str, truth.ranks))}" if truth.ranks else ""
            notes = [
                case.recorded,
                case.code,
                "quiet" if case.quiet else "beside other work",
                case.doubt,
                case.unsteady,
            ]
            print(f"{case.key}: {case.job}, {case.ranks} ranks, {truth.status}{who} {truth.function or ''}".rstrip()
                  + f", step {steps} ms [{'; '.join(filter(None, notes))}]")  # fmt: skip
        print(f"{len(corpus.cases)} cases in {len(archives(args.archives))} archives")
    return 0


def _get(args: argparse.Namespace) -> int:
    wanted = [place for place in archives(args.archives) if any(_is_asked(case, args.only) for case in cases_in(place))]
    with opened(wanted) as corpus:
        for case in chosen(corpus, args.only):
            place = args.into / case.key
            for name, windows in (("case", corpus.windows(case)), ("baseline", corpus.baseline(case))):
                for window in windows:
                    shutil.copytree(window, place / "windows" / name / window.name, dirs_exist_ok=True)
            (place / "case.json").write_text(json.dumps(case.as_json(), indent=1))
            print(place)
    return 0


def _texts(args: argparse.Namespace) -> int:
    """Texts under numbers, which tell nothing of the truth; what is what stands in the folder's neighbour."""
    from rankscope.diagnose.face.cli.report import report
    from rankscope.diagnose.infer.solve.judge import diagnose

    args.into.mkdir(parents=True, exist_ok=True)
    keys = {}
    with opened(archives(args.archives)) as corpus:
        wanted = chosen(corpus, args.only)
        for number, case in enumerate(random.Random(args.seed).sample(wanted, min(args.count, len(wanted))), 1):
            windows, earlier = ([*map(read_window, of(case))] for of in (corpus.windows, corpus.baseline))
            lines = for_readers.shown(windows, earlier) if args.tables else report(diagnose(windows, earlier))
            (args.into / f"{number:02}.txt").write_text("\n".join([*lines, ""]))
            keys[f"{number:02}"] = {"case": case.key, "kind": case.kind, "status": case.truth.status}
    truth = args.into.with_name(f"{args.into.name}-truth.json")
    truth.write_text(json.dumps(keys, indent=1))
    print(f"{len(keys)} texts in {args.into}, what they are of in {truth}")
    return 0


def _judge(args: argparse.Namespace) -> int:
    with opened(archives(args.archives)) as corpus:
        wanted = chosen(corpus, args.only)
        began = time.monotonic()
        with judges(corpus, args.processes, args.diagnoser) as judge:
            judged = list(zip(wanted, judge(wanted), strict=True))
        took = time.monotonic() - began
        whole = len(wanted) == len(corpus.cases)
    if args.bad:
        print("\n".join([*tables.bad_table(judged), ""]))
    print("\n".join(tables.report(judged)))
    print(f"{len(judged)} cases judged in {took:.1f} s by {args.processes} processes")
    if args.json:
        files.write(args.json, judged)
    if args.hold and whole:
        files.hold(judged)
        causes.write(judged)
    worse = list(files.fallen(judged)) if whole and args.archives == HOME and files.HELD.exists() else []
    print("\n".join(f"worse than {files.HELD.name}: {line}" for line in worse), end="\n" if worse else "")
    return EXIT_NOT_GOOD_ENOUGH if worse else 0


def _blind(args: argparse.Namespace) -> int:
    with opened(archives(args.archives)) as corpus:
        wanted = chosen(corpus, args.only)[:: args.every]
        found = blind.judged_without(
            (case.key, [*map(read_window, corpus.windows(case))], [*map(read_window, corpus.baseline(case))])
            for case in wanted
        )
    wrong = [line for counted in found.values() for line in counted.wrong]
    anew = [line for counted in found.values() for line in counted.anew]
    print("\n".join([*(wrong + anew if args.bad else ()), *blind.table(found)]))
    return EXIT_NOT_GOOD_ENOUGH if wrong else 0


def _compare(args: argparse.Namespace) -> int:
    lines, good = files.compared(files.read(args.before), files.read(args.after))
    print("\n".join(lines))
    return 0 if good else EXIT_NOT_GOOD_ENOUGH


def _move(args: argparse.Namespace) -> int:
    known = [one for one in moved.all_constants() if args.constants in one.key]
    with opened(archives(args.archives)) as corpus, judges(corpus, args.processes, args.diagnoser) as judge:
        wanted = chosen(corpus, args.only)
        print(f"{'constant':<52}{'value':>10}{'changed':>9}{'worse':>7}{'share':>8}")
        for one in moved.moves(corpus, wanted, moved.values(known, args.by), judge):
            print("\n".join([moved.line(one, len(wanted)), *(moved.details(one) if args.verdicts else ())]), flush=True)
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    """Hangs have no score of their own, so they are left out."""
    from rankscope.diagnose.infer.solve.calibration import fit

    with opened(archives(args.archives)) as corpus, judges(corpus, args.processes, args.diagnoser) as judge:
        slow = [case for case in chosen(corpus, args.only) if case.truth.status != "hang"]
        as_scored = judge(slow, {"rankscope.diagnose.infer.solve.calibration:POINTS": ((0.0, 0.0), (1.0, 1.0))})
    accused = [(answer.confidence, answer.right) for answer in as_scored if answer.accused]
    print(f"{len(accused)} accusations in {len(slow)} windows, {sum(right for _, right in accused)} of them right")
    print(f"POINTS = {fit(accused)}")
    return 0
