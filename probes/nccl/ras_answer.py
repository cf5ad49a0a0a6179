"""What a NCCL job says of itself through RAS: communicators, their ranks, and how far each rank has got. Pure.

In: the answer to VERBOSE STATUS as bytes. Out: frozen dataclasses. JSON (NCCL 2.28.7 and later) holds every rank; the text of
2.24 to 2.28.3 names only ranks whose counts differ from the others'. All text and numbers are another process's: capped,
stripped of what is not printable, and never trusted to be complete. Formats: NCCL src/ras/client_support.cc, v2.24.3 to
v2.30.7 (rasClientRunComms, rasDumpCommsToJSON).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankscope.probes.text import printable

_MAX_COMMUNICATORS = 4096
_MAX_RANKS = 1 << 20
_MAX_LINES = 1 << 20
_MAX_NUMBER = 1 << 62


class NotRas(ValueError):
    """The answer is not one of RAS."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank of a communicator lives. -1 and '' where RAS does not say; `gpu` as the process counts them, `nvml` as NVML does."""

    rank: int
    host: str
    pid: int
    gpu: int
    nvml: int


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """`size` ranks have launched up to operation number `count`; `who` of them is known."""

    operation: str  # AllReduce, …; 'collective' before NCCL 2.26
    count: int
    size: int
    who: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that did not answer, or answered that it knows nothing of the communicator."""

    place: Place
    unresponsive: bool
    dead: bool


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator. `launched`: per operation, the furthest first; of text only operations whose counts differ."""

    identity: str
    size: int  # 0 where the text does not say
    ranks: tuple[Place, ...]  # all that answered; of text none
    launched: tuple[OperationCounts, ...]
    missing: tuple[Missing, ...]
    troubled: tuple[tuple[Place, str], ...]  # initialising, aborted, failed: with the word

    def behind(self) -> tuple[OperationCounts, ...]:
        """Ranks that have launched less of an operation than the furthest. In a busy job some always have: see `laggards`."""
        furthest: dict[str, int] = {}
        for group in self.launched:
            furthest[group.operation] = max(furthest.get(group.operation, 0), group.count)
        return tuple(group for group in self.launched if group.count < furthest[group.operation])


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """The job as RAS sees it. `whole`: every rank is in it; text names only those that differ."""

    version: str
    communicators: tuple[Communicator, ...]
    timeouts: int
    dead: tuple[Place, ...]  # processes, rank -1
    whole: bool


@dataclass(frozen=True, slots=True)
class Laggard:
    """A rank that is behind the others of its communicator and does not move."""

    communicator: str
    place: Place
    operation: str
    launched: int
    furthest: int


def parse(answer: bytes) -> RasAnswer:
    """The answer in either format. Raises NotRas."""
    text = answer.decode("utf-8", "replace")
    return parse_json(text) if text.lstrip().startswith("{") else parse_text(text)


def laggards(earlier: RasAnswer, later: RasAnswer) -> tuple[Laggard, ...]:
    """Ranks behind in both answers without having launched anything in between, while nobody of their communicator did.

    One answer tells nothing: ranks of a healthy job are a few operations apart. So the counts of a communicator must stand
    still from one answer to the next, as they do when a collective waits for a rank that does not come.
    """
    found: list[Laggard] = []
    before = {communicator.identity: communicator for communicator in earlier.communicators}
    for now in later.communicators:
        then = before.get(now.identity)
        if then is None or then.launched != now.launched:
            continue
        for group in now.behind():
            furthest = max(other.count for other in now.launched if other.operation == group.operation)
            found += [Laggard(now.identity, place, group.operation, group.count, furthest) for place in group.who]
    return tuple(found)


def parse_json(text: str) -> RasAnswer:
    """Raises NotRas."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotRas(f"not JSON: {str(error)[:80]}") from error
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list):
        raise NotRas("JSON without communicators")
    ras = document.get("ras")
    return RasAnswer(
        version=_word(document.get("nccl_version")),
        communicators=tuple(_communicator(each) for each in _objects(document["communicators"])[:_MAX_COMMUNICATORS]),
        timeouts=_number(ras.get("timeouts_count"), 0) if isinstance(ras, dict) else 0,
        dead=(),
        whole=True,
    )


def _communicator(each: Mapping[str, Any]) -> Communicator:
    groups: dict[tuple[str, int], list[Place]] = {}
    places: list[Place] = []
    troubled: list[tuple[Place, str]] = []
    for rank in _objects(each.get("ranks"))[:_MAX_RANKS]:
        place = _place(rank)
        places.append(place)
        counts = rank.get("collective_counts")
        for operation, count in (counts if isinstance(counts, dict) else {}).items():
            groups.setdefault((_word(operation), _number(count, 0)), []).append(place)
        word = _trouble(rank.get("status"))
        if word:
            troubled.append((place, word))
    missing = []
    for rank in _objects(each.get("missing_ranks"))[:_MAX_RANKS]:
        status = rank.get("status")
        said = status if isinstance(status, dict) else {}
        missing.append(Missing(_place(rank), said.get("unresponsive") is True, said.get("considered_dead") is True))
    used = {operation for operation, count in groups if count}
    launched = [
        OperationCounts(operation, count, len(who), tuple(who))
        for (operation, count), who in groups.items()
        if operation in used
    ]
    return Communicator(
        _word(each.get("hash")),
        _number(each.get("size"), 0),
        tuple(places),
        _ordered(launched),
        tuple(missing),
        tuple(troubled),
    )


def _trouble(status: Any) -> str:
    """What is not ordinary running; codes of ncclResult_t (0 success, 7 in progress)."""
    if not isinstance(status, dict):
        return ""
    if status.get("abort_flag") is True:
        return "aborted"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "finalizing"
    for name in ("init_state", "async_error"):
        code = _number(status.get(name), 0)
        if code not in (0, 7):
            return f"{name} {code}"
    return "initializing" if _number(status.get("init_state"), 0) == 7 else ""


def _ordered(groups: Iterable[OperationCounts]) -> tuple[OperationCounts, ...]:
    return tuple(
        sorted(groups, key=lambda group: (group.operation, -group.count, group.who[0].rank if group.who else -1))
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _place(rank: Mapping[str, Any]) -> Place:
    return Place(
        _number(rank.get("rank")), _word(rank.get("host")), _number(rank.get("pid")),
        _number(rank.get("cuda_dev")), _number(rank.get("nvml_dev")),
    )  # fmt: skip


def _number(value: Any, absent: int = -1) -> int:
    ordinary = isinstance(value, int) and not isinstance(value, bool) and -_MAX_NUMBER < value < _MAX_NUMBER
    return value if ordinary else absent


def _word(value: Any) -> str:
    return printable(value, 80) if isinstance(value, str) else ""


_VERSION = re.compile(r"^NCCL version (\S+)")
_HEADING = re.compile(r"^#\d+-\d+ \(([0-9a-f]{1,16})\) ([A-Z]+)$")
_DIFFERENT = re.compile(r"^  Communicator ranks have different (\w+) operation counts$")
_SEVERAL = re.compile(r"^  (\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)$")
_RANK = re.compile(r"^  Rank (\d{1,9})( has .{1,60}?| reported .{1,60}?)? -- (.{1,300})$")
_LAUNCHED = re.compile(r"^ has (?:launched up to operation (\d{1,18})|not launched any operations)$")
_OWNER = re.compile(r"^GPU (\d{1,4})(?: \(NVML (\d{1,4})\))? managed by process (\d{1,9}) on node (\S{1,64})$")
_PROCESS = re.compile(r"^  Process (\d{1,9}) on node (\S{1,64}) managing GPU")
_TIMEOUTS = re.compile(r"^  Encountered (\d{1,9}) communication timeout")


@dataclass(slots=True)
class _Section:
    """Where in the text the parser is."""

    identity: str = ""
    kind: str = ""
    operation: str = ""
    group: OperationCounts | None = None


def parse_text(text: str) -> RasAnswer:
    """Raises NotRas."""
    lines = text.splitlines()[:_MAX_LINES]
    version = next((match.group(1) for line in lines[:16] if (match := _VERSION.match(line))), "")
    if not version:
        raise NotRas(f"begins with {_word(text[:60])!r}")
    known: dict[str, Communicator] = {}
    dead: list[Place] = []
    timeouts = 0
    at = _Section()
    for line in lines:
        if line in ("DEAD", "INCOMPLETE", "TIMEOUT"):
            at = _Section(kind=line)
        elif heading := _HEADING.match(line):
            at = _Section(f"0x{heading.group(1).lstrip('0') or '0'}", heading.group(2))
            if len(known) < _MAX_COMMUNICATORS:
                known.setdefault(at.identity, Communicator(at.identity, 0, (), (), (), ()))
        elif (found := _TIMEOUTS.match(line)) and at.kind == "TIMEOUT":
            timeouts = int(found.group(1))
        elif (found := _PROCESS.match(line)) and at.kind == "DEAD":
            dead.append(Place(-1, _word(found.group(2)), int(found.group(1)), -1, -1))
        elif at.identity in known:
            known[at.identity] = _line(known[at.identity], at, line)
    communicators = tuple(replace(each, launched=_ordered(each.launched)) for each in known.values())
    return RasAnswer(_word(version), communicators, timeouts, tuple(dead), whole=False)


def _line(known: Communicator, at: _Section, line: str) -> Communicator:
    """The communicator with what one line of its section adds."""
    if different := _DIFFERENT.match(line):
        at.operation, at.group = different.group(1), None
    elif at.operation and (several := _SEVERAL.match(line)):
        at.group = OperationCounts(at.operation, int(several.group(2) or 0), int(several.group(1)), ())
        return replace(known, launched=(*known.launched, at.group))
    elif rank := _RANK.match(line):
        place, said = _owner(int(rank.group(1)), rank.group(3)), rank.group(2) or ""
        if at.kind == "INCOMPLETE":
            return replace(known, missing=(*known.missing, Missing(place, unresponsive=True, dead=False)))
        if at.operation and (launched := _LAUNCHED.match(said)):
            at.group = None
            alone = OperationCounts(at.operation, int(launched.group(1) or 0), 1, (place,))
            return replace(known, launched=(*known.launched, alone))
        if at.operation and at.group is not None and not said:
            at.group = replace(at.group, who=(*at.group.who, place))
            return replace(known, launched=(*known.launched[:-1], at.group))
        if said:
            word = said.removeprefix(" has status ").removeprefix(" reported ").strip()
            return replace(known, troubled=(*known.troubled, (place, _word(word).lower())))
    return known


def _owner(rank: int, text: str) -> Place:
    owner = _OWNER.match(text)
    if owner is None:
        return Place(rank, "", -1, -1, -1)
    gpu, nvml, pid, host = owner.groups()
    return Place(rank, _word(host), int(pid), int(gpu), int(nvml if nvml is not None else gpu))
