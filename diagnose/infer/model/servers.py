"""Servers that ranks of a run ask, as their windows show them, and how each differs from the others.

pace(i)    median seconds per byte of server i's answers, q its quartiles
excess(i)  ln pace(i) - median over the other servers of ln pace; the same of the seconds of an
           answer; the lesser counts, so that a server that is given longer sequences is not slow
error(i)   of a median: 1.25 · sd / √n, with sd = (ln q3 - ln q1) / 1.35; of server and others
           together, and `limits.SCALE_FLOOR` for healthy differences
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.stats.robust import median

# Programs that generate, where no weights are sent to them in the window.
_GENERATES = re.compile(r"vllm|sglang|lmdeploy|rollout|generat|sampler", re.IGNORECASE)
_IQR_OF_SD, _MEDIAN_ERROR = 1.35, 1.25  # of a normal distribution


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles."""

    low: float
    middle: float
    high: float

    def log_error(self, count: float) -> float:
        """Standard error of the logarithm of the median of `count` values."""
        if min(self.low, self.middle, self.high) <= 0 or count < 1:
            return math.inf
        return _MEDIAN_ERROR * math.log(self.high / self.low) / _IQR_OF_SD / math.sqrt(count)


@dataclass(frozen=True, slots=True)
class RunServer:
    """One server: seconds of the window in which it was asked, alone, and sent data to.

    `answer_s`, `pace`: seconds of an answer, and seconds per byte of it; None without answers.
    `queue_s`: run-queue delay of its threads, NaN if unknown.
    """

    host: str
    address: str
    program: str
    pid: int
    asked_s: float
    alone_s: float
    transfer_s: float
    transfers: int
    answers: int
    answer_s: Spread | None
    pace: Spread | None
    queue_s: float

    @property
    def generates(self) -> bool:
        """Whether it generates: it is sent weights, or its program says so."""
        return self.transfers > 0 or bool(_GENERATES.search(self.program))

    @property
    def words(self) -> str:
        """Program and host, 'server.py on node1'."""
        return f"{self.program or 'a server'} on {self.host}"


@dataclass(frozen=True, slots=True)
class SlowServer:
    """How much longer a server takes than the others of its host and program, and how clear that is.

    `share`: of its time, by which it exceeds them; `usual_answer_s`, `usual_pace`: the others'
    medians.
    """

    server: RunServer
    share: float
    z: float
    others: int
    usual_answer_s: float
    usual_pace: float


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of generation: times in which any server was asked.

    `spread`: of the time of a round in which a server is idle, mean over servers; `uneven_s`: its
    sum over the rounds; `mean_s`: mean length of a round.
    """

    count: int
    mean_s: float
    uneven_s: float
    spread: Spread


def rounds_of(fleet: Fleet) -> Rounds | None:
    """Return the rounds of generation; None where none was seen."""
    table, counters = fleet.counters.table, fleet.counters
    rows = counters.rows("server.idle_in_round_s").tolist()
    count = sum(each.value for each in counters.named("server.rounds"))
    if len(rows) != 1 or not count >= 1:
        return None
    total_s = sum(each.value for each in counters.named("server.any_asked_s"))
    uneven_s = sum(each.value for each in counters.named("server.idle_s"))
    spread = Spread(*(float(column[rows[0]]) for column in (table.minimum, table.value, table.maximum)))
    return Rounds(int(count), total_s / count, uneven_s, spread)


def servers_of(fleet: Fleet) -> tuple[RunServer, ...]:
    """Return the servers of a run, those asked longest first."""
    found = []
    counters, table = fleet.counters, fleet.counters.table
    for asked in counters.named("server.asked_s"):

        def spread(name: str, pid: int = asked.pid, at: str = asked.instance) -> Spread | None:
            """Median and quartiles of one of this server's counters; None without finite values."""
            for row in counters.rows(name).tolist():
                if int(table.pid[row]) == pid and table.instance.at(row) == at:
                    values = float(table.minimum[row]), float(table.value[row]), float(table.maximum[row])
                    return Spread(*values) if all(map(math.isfinite, values)) else None
            return None

        def value(name: str, pid: int = asked.pid, at: str = asked.instance) -> float:
            """Value of one of this server's counters; NaN without it."""
            return next((c.value for c in counters.named(name) if (c.pid, c.instance) == (pid, at)), math.nan)

        found.append(
            RunServer(
                asked.observed_on, asked.instance, asked.comm, asked.pid, asked.value, value("server.alone_s"),
                value("server.transfer_s"), _whole(value("server.transfers")), _whole(value("server.questions")),
                spread("server.question_s"), spread("server.pace"), value("server.queue_s"),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.asked_s, one.address)))


def slowest(servers: Sequence[RunServer]) -> SlowServer | None:
    """Return the server that is slowest against the others of its host and program; None without others."""
    found = [each for each in (_against(one, servers) for one in servers) if each is not None]
    return max(found, key=lambda each: each.share, default=None)


def _against(one: RunServer, servers: Sequence[RunServer]) -> SlowServer | None:
    """Compare a server with the others of its host and program, by seconds per answer and per byte.

    The lesser excess and clearness of the two count. None without others, or without answers.
    """
    others = [each for each in servers if each is not one and (each.host, each.program) == (one.host, one.program)]
    shares, scores, usuals = [], [], []
    for name in ("answer_s", "pace"):
        mine = getattr(one, name)
        theirs = [(getattr(each, name), each.answers) for each in others if getattr(each, name) is not None]
        if mine is None or not theirs or mine.middle <= 0 or min(each.middle for each, _ in theirs) <= 0:
            return None
        usual = math.exp(median([math.log(each.middle) for each, _ in theirs]))
        above = math.log(mine.middle / usual)
        usuals.append(usual)
        errors = mine.log_error(one.answers), max(each.log_error(count) for each, count in theirs)
        scores.append(above / math.hypot(*errors, limits.SCALE_FLOOR))
        shares.append(1 - math.exp(-above))
    return SlowServer(one, min(shares), min(scores), len(others), *usuals)


def _whole(value: float) -> int:
    """Convert a counter to a whole number; 0 if it is not finite."""
    return int(value) if math.isfinite(value) else 0
