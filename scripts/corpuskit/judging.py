"""Cases judged side by side by the diagnoser as it is now, or with other numbers: a constant has another value, wherever it is used.

A constant is `module:NAME`. Its assignment is replaced while the module is imported, so what was computed from it, imported from
there, or made a default of a function has the new value as well. Modules of the diagnoser are forgotten before, and imported
again from their files; what they stand on stays.
"""

from __future__ import annotations

import ast
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from corpuskit.archive import Corpus
from corpuskit.case import Case
from labkit import verdicts
from labkit.jobs.score import outcome_of
from rankscope.diagnose.infer.fleet.large.isolated import isolate_children
from rankscope.diagnose.infer.solve.notes.rhythm import LATER_PART

# Uneven by design: told beside a fault, but nothing that the fault took.
DESIGNED = {"stage-imbalance", "data-imbalance"}
TODAY = "rankscope.diagnose.infer.solve.judge:diagnose"  # windows, earlier windows → a verdict
_TOGETHER = 8  # cases that a process is given at once
# Numeric libraries must not start a thread per core in each of the processes.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Overrides = Mapping[str, Any]  # module:NAME → a value that can be written as a literal
DIAGNOSER = "rankscope.diagnose"

_now: dict[str, Any] = {}
_usual_code: Callable[[SourceFileLoader, str], CodeType | None] = SourceFileLoader.get_code


Diagnose = Callable[[Sequence[Any], Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said about a case, against its truth.

    outcome: one of verdicts.FIRST … FAILED. right: whether the first suspect of an accusation is a culprit. lost_s: of all who
    are accused, of each step. seconds: how long it took to judge. step_s: mean of a rank's steps in the windows, as they are told; 0 where
    there are none. part_step_s: of the part that the verdict says it is about; 0 where it is about the whole. earlier_s: as step_s, of
    earlier windows.
    """

    key: str
    outcome: str
    said: str
    accused: bool = False
    right: bool = False
    confidence: float = 0.0
    lost_s: float = 0.0
    verdict: str = ""
    seconds: float = 0.0
    step_s: float = 0.0
    median_s: float = 0.0
    part_step_s: float = 0.0
    earlier_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Judged = tuple[Case, Answer]


@dataclass(frozen=True, slots=True)
class Task:
    """Cases with the folders of their windows and earlier windows."""

    cases: tuple[tuple[Case, tuple[Path, ...], tuple[Path, ...]], ...]
    numbers: tuple[tuple[str, Any], ...] = ()
    by: str = TODAY


def tasks(
    corpus: Corpus, cases: Sequence[Case], numbers: Overrides, together: int = _TOGETHER, by: str = TODAY
) -> Iterator[Task]:
    """The work in pieces, each for one process."""
    for start in range(0, len(cases), together):
        chosen = cases[start : start + together]
        places = [(case, tuple(corpus.windows(case)), tuple(corpus.baseline(case))) for case in chosen]
        yield Task(tuple(places), tuple(numbers.items()), by)


class Judges:
    """Processes that judge. Make them with `judges`."""

    def __init__(self, corpus: Corpus, pool: Any, by: str) -> None:
        self.by = by
        self._corpus = corpus
        self._pool = pool

    def __call__(self, cases: Sequence[Case], numbers: Overrides | None = None) -> list[Answer]:
        work = tasks(self._corpus, cases, numbers or {}, by=self.by)
        found = {answer.key: answer for _, answers in self.run(work) for answer in answers}
        return [found[case.key] for case in cases]

    def run(self, work: Iterable[Task]) -> Iterator[tuple[Task, list[Answer]]]:
        """Yield each piece with its answers, as soon as it is done."""
        yield from self._pool.imap_unordered(judge_task, work)


@contextmanager
def judges(corpus: Corpus, processes: int, by: str = TODAY) -> Iterator[Judges]:
    """So many processes that judge cases of this corpus. `by`: module:function, another diagnoser beside that of today."""
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    # Started anew, not forked: what a judge imports must be its own, and threads of a parent do not survive a fork.
    isolate_children()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield Judges(corpus, pool, by)


def judge_task(task: Task) -> tuple[Task, list[Answer]]:
    """Judge one piece, in one of the processes."""
    use(dict(task.numbers))
    module, _, function = task.by.partition(":")
    diagnose: Diagnose = getattr(importlib.import_module(module), function)
    return task, [_judge(diagnose, *one) for one in task.cases]


_windows: dict[Path, Any] = {}  # of this process: what was read once is judged many times


def _judge(diagnose: Diagnose, case: Case, windows: Sequence[Path], baseline: Sequence[Path]) -> Answer:
    from rankscope.diagnose.infer.verdict.as_json import to_json

    began = time.perf_counter()
    try:
        printed = to_json(diagnose([_read(one) for one in windows], [_read(one) for one in baseline]))
    except Exception as error:  # whatever it is, it is this case's answer, and the other cases go on
        return Answer(case.key, verdicts.FAILED, f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    read = [_read(one) for one in windows]
    found = answer(case, printed, seconds, step_seconds(read), step_seconds(read, statistics.median))
    return replace(found, earlier_s=step_seconds([_read(one) for one in baseline]))


def step_seconds(windows: Sequence[Any], of: Callable[[list[float]], float] = statistics.fmean) -> float:
    """Mean of the steps of a rank, or another measure `of` them, median over ranks, seconds: a rank of which several steps are told for one
    of the job's has most steps, and no other length of the job's."""
    of_rank = dict[int, list[float]]()
    for window in windows:
        columns = (window.steps.column(name).to_pylist() for name in ("rank", "seconds"))
        for rank, value in zip(*columns, strict=True):
            if value:
                of_rank.setdefault(rank, []).append(value)
    return statistics.median(map(of, of_rank.values())) if of_rank else 0.0


def _read(place: Path) -> Any:
    from rankscope.observer.window.folder import read_window

    if place not in _windows:
        _windows[place] = read_window(place)
    return _windows[place]


def answer(case: Case, printed: str, seconds: float = 0.0, step_s: float = 0.0, median_s: float = 0.0) -> Answer:
    """A verdict against the truth of a case."""
    try:
        verdict = verdicts.parse(printed)
    except verdicts.BadVerdict as error:
        return Answer(case.key, verdicts.FAILED, f"no verdict: {error}")
    verdict = of_the_lab(case, verdict)
    outcome = outcome_of(verdict, case.truth)
    right = verdicts.first_is_right(verdict, case.truth)
    if right and case.place and not _on_its_lines(case, verdict.suspects[0]):
        right, outcome = False, verdicts.WRONG
    return Answer(
        key=case.key,
        outcome=outcome,
        said=f"{verdict.status}: " + ("; ".join(map(str, verdict.suspects[:3])) or "nobody"),
        accused=verdict.accuses,
        right=right,
        confidence=verdict.suspects[0].confidence if verdict.suspects else 0.0,
        lost_s=sum(one.lost_s for one in verdict.suspects if not one.waste and one.cause not in DESIGNED)
        if verdict.accuses
        else 0.0,
        verdict=printed,
        seconds=seconds,
        step_s=step_s,
        median_s=median_s,
        part_step_s=_part_step_s(verdict, printed),
    )


def _part_step_s(verdict: verdicts.Verdict, printed: str) -> float:
    """The step of which the lost times are told, where steps became longer and the part after that was judged alone."""
    if LATER_PART not in printed:
        return 0.0
    told = [one for one in verdict.suspects if 0 < one.lost_percent < 100]
    return 100 * sum(one.lost_s for one in told) / sum(one.lost_percent for one in told) if told else 0.0


def of_the_lab(case: Case, verdict: verdicts.Verdict) -> verdicts.Verdict:
    """The verdict without what is true and not what the lab did: where other work ran beside, programs that took the CPU meanwhile.

    Of a case whose own truth is a CPU that was taken nothing is left out.
    """
    truths = [answer for each in (case.truth, *case.truth.also) for answer in (each, *each.alternatives)]
    if case.quiet or any("contended" in answer.causes.get("cpu", ()) for answer in truths):
        return verdict
    kept = tuple(one for one in verdict.suspects if (one.component, one.cause) != ("cpu", "contended"))
    status, differ = verdict.status, [one for one in kept if not one.waste]
    if status == "fault" and all(one.cause in DESIGNED for one in differ):
        status = "imbalance" if differ else "inefficient" if kept else "healthy"
    return replace(verdict, status=status, suspects=kept)


def _on_its_lines(case: Case, suspect: verdicts.Suspect) -> bool:
    """Whether a function that has the right name is the one that was meant; anything else is not held against its lines."""
    function = json.loads(suspect.said)["function"]
    if case.place is None or not function or str(function["name"]).rsplit(".", 1)[-1] != case.truth.function:
        return True
    where = case.place
    return Path(function["file"]).name == where.file and where.first <= int(function["line"]) <= where.last


def use(overrides: Overrides) -> None:
    """From now on the diagnoser, imported anew, has these values. Not for processes that use it already."""
    if dict(overrides) == _now:
        return
    _now.clear()
    _now.update(overrides)
    for name in [name for name in sys.modules if name == DIAGNOSER or name.startswith(f"{DIAGNOSER}.")]:
        del sys.modules[name]
    setattr(SourceFileLoader, "get_code", _code)  # noqa: B010 (mypy takes methods for constants)
    importlib.invalidate_caches()


def _code(loader: SourceFileLoader, module: str) -> CodeType | None:
    wanted = {key.partition(":")[2]: value for key, value in _now.items() if key.partition(":")[0] == module}
    if not wanted:
        return _usual_code(loader, module)
    path = loader.get_filename(module)
    return compile(replaced(loader.get_data(path).decode(), wanted), path, "exec", dont_inherit=True)


def replaced(source: str, values: Mapping[str, Any]) -> ast.Module:
    """The source with other values assigned to these names of the module. KeyError where one is not assigned there."""
    tree = ast.parse(source)
    left = dict(values)
    for statement in tree.body:
        name = assigned(statement)
        if name is not None and name in left:
            assert isinstance(statement, (ast.Assign, ast.AnnAssign))
            statement.value = ast.copy_location(ast.parse(repr(left.pop(name)), mode="eval").body, statement)
    if left:
        raise KeyError(next(iter(left)))
    return ast.fix_missing_locations(tree)


def assigned(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to; None of any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None
