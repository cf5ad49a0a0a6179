"""Runs with generation servers: the wait for them is nobody's own time; a slow one is named, a tail is none."""

from __future__ import annotations

import json
from dataclasses import asdict

import builders
import numpy as np
from builders import TRAIN, Job, Work, build, columns

from rankscope.diagnose.face.report.budget_words import line_of
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.sentence import sentence_of
from rankscope.observer.serving.exchanges import Exchange
from rankscope.observer.serving.found import Server
from rankscope.observer.serving.rows import server_rows
from rankscope.observer.serving.watch import Asked
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

ASKED_S = 0.15
ASK = Work("sync", "futex", 0, 36, caller="Servers.ask", frames=(StackFrame("generate", TRAIN, 30),))


def judged(lengths: np.ndarray, paces: tuple[float, float, float], *, told: bool = True) -> Verdict:
    """Verdict on a run whose rank 0 asks three servers in each step.

    lengths: servers x steps, bytes of the answers; paces: seconds per byte.
    """
    (window,) = build(Job(ranks=4, extra={0: [(ASK, ASKED_S)]}))
    return diagnose([_asking(window, lengths, paces) if told else window])


def _asking(window: Window, lengths: np.ndarray, paces: tuple[float, float, float]) -> Window:
    steps = window.steps.to_pylist()
    for row in steps:
        row["sync_s"] += ASKED_S * (row["rank"] == 0)
        row["asked_s"] = ASKED_S * (row["rank"] == 0)
    begins = [row["start_s"] for row in steps if row["rank"] == 0]
    rng = np.random.default_rng(1)
    asked = []
    for number, pace in enumerate(paces):
        each = [Exchange(at, at + pace * size * rng.lognormal(0, 0.03), 100, int(size), True)
                for at, size in zip(begins, lengths[number], strict=False)]  # fmt: skip
        weights = [Exchange(at + 0.2, at + 0.21, 8 << 20, 10, True) for at in begins]
        server = Server("job-a", 100 + number, 8000 + number, "server.py", (0,))
        asked.append(Asked(server, f"127.0.0.1:{8000 + number}", {1: [*each, *weights]}, 1.0, 0.1))
    counters = [*window.counters.to_pylist(), *map(asdict, server_rows(asked, 0.0, 20.0))]
    return columns(columns(window, "steps", steps), "counters", counters)


def even() -> np.ndarray:
    return np.random.default_rng(2).uniform(900, 1000, (3, 70))


PACE = ASKED_S / 1000


def test_waiting_for_servers_is_no_fault_of_the_rank_that_asks() -> None:
    assert judged(even(), (PACE,) * 3, told=False).suspects[0].ranks == (0,)  # why all this is needed
    verdict = judged(even(), (PACE,) * 3)
    assert (verdict.status, verdict.suspects) == ("healthy", ())


def test_the_budget_tells_generation_and_the_stages() -> None:
    budget = judged(even(), (PACE,) * 3).budget
    assert budget is not None
    of = {part.kind: part for part in budget.parts}
    sent = of[Kind.SERVERS].seconds
    assert 0.9 <= (of[Kind.GENERATION].seconds + sent) / (ASKED_S / 4) <= 1.1 and sent < of[Kind.GENERATION].seconds
    assert of[Kind.GENERATION].items[0].what == f"server.py on {builders.build(Job())[0].manifest.host}"
    assert abs(sum(part.seconds for part in budget.parts) - budget.seconds) < 1e-6
    generate = next(stage for stage in budget.stages if stage.function and stage.function.name == "generate")
    assert 0.9 <= generate.seconds / ASKED_S <= 1.1
    assert "waiting for generation" in line_of(budget) and "generate" in line_of(budget).partition("stages")[2]
    assert "stages" not in line_of(judged(even(), (PACE,) * 3, told=False).budget or budget)


def test_a_slow_server_is_named_with_its_address_and_pid() -> None:
    verdict = judged(even(), (PACE * 0.6, PACE, PACE * 0.6))
    suspect = builders.first(verdict)
    assert (verdict.status, suspect.component, suspect.cause, suspect.ranks) == ("fault", "process", "slow-server", ())
    assert suspect.instances[0].name == "127.0.0.1:8001" and suspect.instances[0].pid == 101
    assert 0.7 <= suspect.lost_seconds_per_step / (0.4 * 0.95 * ASKED_S) <= 1.3
    assert "127.0.0.1:8001" in sentence_of(verdict) and json.loads(to_json(verdict))["budget"]["stages"]


def test_a_server_that_is_given_more_is_uneven_work_and_no_fault() -> None:
    lengths = even() * 0.4
    lengths[1] /= 0.4
    verdict = judged(lengths, (PACE,) * 3)
    assert (verdict.status, builders.first(verdict).cause) == ("imbalance", "uneven-generation")


def test_a_tail_on_another_server_each_time_is_uneven_work() -> None:
    lengths = even() * 0.4
    lengths[np.arange(70) % 3, np.arange(70)] /= 0.4
    verdict = judged(lengths, (PACE,) * 3)
    assert (verdict.status, [one.cause for one in verdict.suspects]) == ("imbalance", ["uneven-generation"])
    assert "uneven" in sentence_of(verdict)


def test_an_idle_server_that_never_answers_breaks_nothing() -> None:
    lengths = even()
    verdict = judged(lengths[:, :0], (PACE,) * 3)
    assert verdict.status == "healthy"
