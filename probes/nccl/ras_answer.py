"""Parse RAS answers of a NCCL job: communicators, their ranks, and the progress of each rank. Pure.

In: the answer to VERBOSE STATUS as bytes. Out: frozen dataclasses. JSON (NCCL 2.28.7 and later)
lists every rank; the text of 2.24 to 2.28.3 names only ranks whose counts differ from the others'.
All text and numbers are another process's: capped, stripped of what is not printable, and never
trusted to be complete. Formats: NCCL src/ras/client_support.cc, v2.24.3 to v2.30.7
(rasClientRunComms, rasDumpCommsToJSON).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rankscope.probes.base.text import printable

_MAX_COMMUNICATORS = 4096
_MAX_RANKS = 1 << 20
_MAX_LINES = 1 << 18  # of text, which names only ranks that differ
_MAX_PARTS = 1 << 19  # of JSON: five times those in 32 MB of NCCL's, and no more than memory allows
_MAX_VALUES = 1 << 22
_MAX_NUMBER = 1 << 62
_NO_COMMA = re.compile(r'("nvml_dev": -?[0-9]{1,18})(\n {1,16}"status")')


class NotRas(ValueError):
    """The answer is not one of RAS."""


@dataclass(frozen=True, slots=True)
class Place:
    """Host, process and GPU of a rank of a communicator. -1 and '' where RAS does not say.

    `gpu` as the process counts them, `nvml` as NVML does.
    """

    rank: int
    host: str
    pid: int
    gpu: int
    nvml: int


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Number of ranks (`size`) that launched operations up to number `count`; `who`: those known by
    name.
    """

    operation: str  # AllReduce, …; 'collective' before NCCL 2.26
    count: int
    size: int
    who: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that did not answer, or does not know the communicator."""

    place: Place
    unresponsive: bool
    dead: bool


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator. `launched`: per operation, the furthest first; in text form only operations
    whose counts differ.
    """

    identity: str
    size: int  # 0 where the text does not say
    ranks: tuple[Place, ...]  # all that answered; none in text form
    launched: tuple[OperationCounts, ...]
    missing: tuple[Missing, ...]
    troubled: tuple[tuple[Place, str], ...]  # initialising, aborted, failed: with a word for it

    def furthest(self) -> dict[str, int]:
        """Return, per operation, the highest count that any rank launched."""
        found: dict[str, int] = {}
        for group in self.launched:
            found[group.operation] = max(found.get(group.operation, group.count), group.count)
        return found

    def behind(self) -> tuple[OperationCounts, ...]:
        """List groups of ranks that launched fewer of an operation than the furthest.

        In a busy job some always did: see `laggards`.
        """
        furthest = self.furthest()
        return tuple(group for group in self.launched if group.count < furthest[group.operation])


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """The state of a job as reported by RAS. `whole`: every rank is included; text names only those
    that differ.
    """

    version: str
    communicators: tuple[Communicator, ...]
    timeouts: int
    dead: tuple[Place, ...]  # processes, rank -1
    whole: bool


@dataclass(frozen=True, slots=True)
class Laggard:
    """A rank that is behind the others of its communicator and makes no progress."""

    communicator: str
    place: Place
    operation: str
    launched: int
    furthest: int


def parse(answer: bytes) -> RasAnswer:
    """Parse an answer, JSON or text. Raises NotRas."""
    text = answer.decode("utf-8", "replace")
    return parse_json(text) if text.lstrip().startswith("{") else parse_text(text)


def laggards(earlier: RasAnswer, later: RasAnswer) -> tuple[Laggard, ...]:
    """Find ranks that are behind in both answers, while no rank of their communicator made progress in between.

    One answer is not enough: ranks of a healthy job are a few operations apart. So the counts of a
    communicator must not change from one answer to the next, as when a collective waits for a rank
    that does not come.
    """
    found: list[Laggard] = []
    before = {communicator.identity: communicator for communicator in earlier.communicators}
    for now in later.communicators:
        then = before.get(now.identity)
        if then is None or then.launched != now.launched:
            continue
        furthest = now.furthest()
        for group in now.behind():
            most = furthest[group.operation]
            found += [Laggard(now.identity, place, group.operation, group.count, most) for place in group.who]
    return tuple(found)


def parse_json(text: str) -> RasAnswer:
    """Parse the JSON format (NCCL 2.28.7 and later). Raises NotRas."""
    if text.count("{") + text.count("[") > _MAX_PARTS or text.count(",") > _MAX_VALUES:
        raise NotRas("absurdly many parts")
    document = _loaded(text)
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


def _loaded(text: str) -> Any:
    """Load the JSON document. Raises NotRas.

    Repairs a comma that NCCL 2.28.7 to 2.28.9 omit for ranks that do not answer.
    """
    try:
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(_NO_COMMA.sub(r"\1,\2", text))
    except (ValueError, RecursionError) as error:
        raise NotRas(f"not JSON: {str(error)[:80]}") from error


def _communicator(each: Mapping[str, Any]) -> Communicator:
    """Convert the JSON object of one communicator; what is absent or of the wrong type is -1, '' or left out.

    Operations that no rank has launched are left out.
    """
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
    """Describe a rank's JSON `status` that is not normal ('aborted', 'finalizing', 'async_error 6'); else ''.

    Codes of ncclResult_t: 0 success, 7 in progress.
    """
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
    """Sort groups by operation, in each the furthest (highest count) first, then by their first rank."""
    return tuple(
        sorted(groups, key=lambda group: (group.operation, -group.count, group.who[0].rank if group.who else -1))
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a JSON list, without its other elements; empty where it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _place(rank: Mapping[str, Any]) -> Place:
    """Read host, process and GPU from the JSON object of a rank."""
    return Place(
        _number(rank.get("rank")), _word(rank.get("host")), _number(rank.get("pid")),
        _number(rank.get("cuda_dev")), _number(rank.get("nvml_dev")),
    )  # fmt: skip


def _number(value: Any, absent: int = -1) -> int:
    """Return `value` if it is an int (no bool, no text) within ±`_MAX_NUMBER`, else `absent`."""
    ordinary = isinstance(value, int) and not isinstance(value, bool) and -_MAX_NUMBER < value < _MAX_NUMBER
    return value if ordinary else absent


def _word(value: Any) -> str:
    """Escape unprintable characters of a text and cut it to 80 characters; '' where it is no text."""
    return printable(value, 80) if isinstance(value, str) else ""


_VERSION = re.compile(r"^NCCL version (\S+)")
_HEADING = re.compile(r"^#\d+-\d+ \(([0-9a-f]{1,16})\) ([A-Z]+)$")
_DIFFERENT = re.compile(r"^  Communicator ranks have different (\w{1,80}) operation counts$")
_SEVERAL = re.compile(r"^  (\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)$")
_RANK = re.compile(
    r"^  Rank (\d{1,9})( has launched up to operation (\d{1,18})| has .{1,60}?| reported .{1,60}?)? -- (.{1,300})$"
)
_NOT_LAUNCHED = " has not launched any operations"
_OWNER = re.compile(r"^GPU (\d{1,4})(?: \(NVML (\d{1,4})\))? managed by process (\d{1,9}) on node (\S{1,64})$")
_PROCESS = re.compile(r"^  Process (\d{1,9}) on node (\S{1,64}) managing GPU")
_TIMEOUTS = re.compile(r"^  Encountered (\d{1,9}) communication timeout")


@dataclass(slots=True)
class _Group:
    """An OperationCounts under construction."""

    operation: str
    count: int
    size: int
    who: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class _Gathered:
    """A Communicator under construction: lists, frozen once at the end, as an answer may have a
    million lines.
    """

    groups: list[_Group] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    troubled: list[tuple[Place, str]] = field(default_factory=list)

    def frozen(self, identity: str) -> Communicator:
        """Return the finished communicator, with `identity` as its hash."""
        launched = (OperationCounts(one.operation, one.count, one.size, tuple(one.who)) for one in self.groups)
        return Communicator(identity, 0, (), _ordered(launched), tuple(self.missing), tuple(self.troubled))


@dataclass(slots=True)
class _Section:
    """The parser's position in the text. `into`: None outside of a communicator's section."""

    kind: str = ""
    into: _Gathered | None = None
    operation: str = ""
    group: _Group | None = None


def parse_text(text: str) -> RasAnswer:
    """Parse the text format (NCCL 2.24 to 2.28.3). Raises NotRas."""
    lines = text.split("\n", _MAX_LINES)[:_MAX_LINES]
    version = next((match.group(1) for line in lines[:16] if (match := _VERSION.match(line))), "")
    if not version:
        raise NotRas(f"begins with {_word(text[:60])!r}")
    known: dict[str, _Gathered] = {}
    dead: list[Place] = []
    timeouts = 0
    at = _Section()
    for line in lines:
        if line.startswith("  "):  # most lines: they belong to a section
            if at.into is not None:
                _line(at.into, at, line)
            elif at.kind == "DEAD" and (process := _PROCESS.match(line)):
                dead.append(Place(-1, _name(process.group(2)), int(process.group(1)), -1, -1))
            elif at.kind == "TIMEOUT" and (found := _TIMEOUTS.match(line)):
                timeouts = int(found.group(1))
        elif line in ("DEAD", "INCOMPLETE", "TIMEOUT"):
            at = _Section(line)
        elif heading := _HEADING.match(line):
            identity = f"0x{heading.group(1).lstrip('0') or '0'}"
            if len(known) < _MAX_COMMUNICATORS:
                known.setdefault(identity, _Gathered())
            at = _Section(heading.group(2), known.get(identity))
    communicators = tuple(gathered.frozen(identity) for identity, gathered in known.items())
    return RasAnswer(_word(version), communicators, timeouts, tuple(dead), whole=False)


def _line(into: _Gathered, at: _Section, line: str) -> None:
    """Parse one indented line of a communicator's section: add it to `into`, update the position `at`."""
    if rank := _RANK.match(line):
        number, said, count, owner = rank.groups("")
        _rank(into, at, _owner(int(number), owner), said, count)
    elif different := _DIFFERENT.match(line):
        at.operation, at.group = different.group(1), None
    elif at.operation and (several := _SEVERAL.match(line)):
        at.group = _Group(at.operation, int(several.group(2) or 0), int(several.group(1)))
        into.groups.append(at.group)


def _rank(into: _Gathered, at: _Section, place: Place, said: str, count: str) -> None:
    """Add a line about one rank to `into`: missing, launched operations, or trouble.

    `said`: what the line says of the rank, '' if nothing; `count`: number of launched operations in it,
    '' if none. `at`: the parser's position, whose group a line without either belongs to.
    """
    if at.kind == "INCOMPLETE":
        into.missing.append(Missing(place, unresponsive=True, dead=False))
    elif at.operation and (count or said == _NOT_LAUNCHED):
        at.group = None
        into.groups.append(_Group(at.operation, int(count or 0), 1, [place]))
    elif at.operation and at.group is not None and not said:
        at.group.who.append(place)
    elif said:
        word = said.removeprefix(" has status ").removeprefix(" reported ").strip()
        into.troubled.append((place, _name(word).lower()))


def _owner(rank: int, text: str) -> Place:
    """Parse 'GPU 0 (NVML 1) managed by process 5 on node x' to a rank's Place; -1 and '' if it is not so.

    Without '(NVML …)' the GPU's own number is used for it.
    """
    owner = _OWNER.match(text)
    if owner is None:
        return Place(rank, "", -1, -1, -1)
    gpu, nvml, pid, host = owner.groups()
    return Place(rank, _name(host), int(pid), int(gpu), int(nvml if nvml is not None else gpu))


@lru_cache(maxsize=1024)  # some hosts and words, repeated for many ranks
def _name(text: str) -> str:
    """Escape unprintable characters of a host or status word, cut it to 80 characters; cached."""
    return _word(text)
