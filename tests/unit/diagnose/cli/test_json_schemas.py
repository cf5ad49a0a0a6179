"""What each command prints with --json is what its schema says, to the last field; and a schema lets nothing pass that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import printed
import promised
import pytest
import typer
from jsonschema import Draft202012Validator

from rankscope.diagnose.face.cli.main import app
from rankscope.diagnose.face.export.formats import FORMATS
from rankscope.diagnose.face.top.snapshot import PARTS
from rankscope.diagnose.infer.causes.causes import CAUSES
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import SCOPES, STATUSES, StepSeconds, Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.diagnose.service.alarms import AlarmKind
from rankscope.diagnose.service.ledger.entry import Kind as Lost
from rankscope.diagnose.service.ledger.entry import Scope
from rankscope.diagnose.severity import STATES
from rankscope.observer.sources import Seen, Source

Documents = Callable[[str], list[Any]]

# Fields that may be below 0, whichever schema they are of.
SIGNED = {
    "slowdown_percent", "line", "local_rank", "z", "excess_percent", "nats", "needed_nats", "regained_seconds_per_step",
    "window_began_after_s",
}  # fmt: skip
# Fields that may be empty: '' for none, or for not known.
MAY_BE_EMPTY = {
    "file", "host", "instance", "what", "unit", "function", "missing", "title", "named", "user", "ended", "action", "remedy", "why", "says",
    "role", "node", "container", "python", "command", "devices", "comm", "most", "place", "state", "status", "remark", "read", "expected",
    "run",
}  # fmt: skip
# But these must not be, in these schemas.
NAMED = {
    "verdict": {"action"}, "watch": {"host", "state", "user"}, "blackbox": {"user", "host", "state"}, "sweep": {"host", "state"},
    "sweep-comparison": {"host", "state"}, "record": {"host"}, "top": {"host"}, "ranks": {"host"}, "ledger": {"host"},
    "blackbox-list": {"host", "state"},
}  # fmt: skip
# Fields that are not always there.
OPTIONAL = {
    "stacks",
    "other_jobs",
    "workers",
    "drain_host",
    "drain_reason",
    "regained_seconds_per_step",
    "waited",
    "stopped",
    "user",
}
# Objects whose keys are no fields.
MAPS = {"parts", "sources", "seconds", "settings", "missing"}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documents]:
    """What is printed, by the name of its schema; made once."""
    made: dict[str, list[Any]] = {}

    def get(name: str) -> list[Any]:
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                made[name] = printed.PRINTED[name](tmp_path_factory.mktemp(name), patch)
        return made[name]

    yield get


def test_every_command_with_json_has_a_schema_and_every_schema_a_command() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    with_json = {name for name, one in commands.items() if any("--json" in each.opts for each in one.params)}
    index = promised.index()
    assert with_json == set(index) and with_json == set(commands) - {"completion", "mcp"}
    outputs = [one for each in index.values() for one in each]
    assert (
        {one["schema"].removesuffix(promised.SUFFIX) for one in outputs}
        == set(promised.schemas())
        == set(printed.PRINTED)
    )
    for one in outputs:
        assert set(one) <= {"schema", "exit_codes", "arguments", "lines"} and set(one["exit_codes"]) <= {0, 1, 2, 3, 69}


@pytest.mark.parametrize("name", sorted(promised.schemas()))
def test_a_schema_is_one_and_says_of_what(name: str) -> None:
    schema = promised.schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema["$id"] == f"{name}{promised.SUFFIX}"
    assert schema["title"].startswith("rankscope") and "--json` print" in schema["description"]


@pytest.mark.parametrize("name", sorted(printed.PRINTED))
def test_what_a_command_prints_is_what_its_schema_says(name: str, documents: Documents) -> None:
    told = documents(name)
    assert told and {json.dumps(one)[:200]: found for one in told if (found := promised.complaints(name, one))} == {}


@pytest.mark.parametrize("name", sorted(printed.PRINTED))
def test_what_cannot_be_is_refused(name: str, documents: Documents) -> None:
    """A field that is missing or of another type, a name that is empty, a number below 0: in every kind of place once."""
    seen, passed = set(), []
    for document in map(_short, documents(name)):
        for place in promised.places(document):
            value = promised.at(document, place)
            kind = (*_fields(document, place), type(value), value == "", value == [])
            embedded = name != "verdict" and len(place) > 1 and "verdict" in place[:-1] and "lines" not in place
            if kind in seen or (embedded and place[-2] != "verdict"):  # has its own schema, and its own test
                continue
            seen.add(kind)
            spoilt = _spoilt(name, document, place)
            passed += [f"{'/'.join(map(str, place))} {what}" for what, made in spoilt if promised.allows(name, made)]
    assert passed == []


def _short(document: Any) -> Any:
    """The document with few objects in its lists."""
    if isinstance(document, dict):
        return {key: _short(value) for key, value in document.items()}
    if isinstance(document, list):
        few = document[:2] if document and isinstance(document[0], dict) else document
        return [_short(value) for value in few]
    return document


def _fields(document: Any, place: tuple[Any, ...]) -> list[str]:
    """The fields on the way to a place: no indices, and * for a key that is no field."""
    found = []
    for depth, key in enumerate(place):
        if isinstance(promised.at(document, place[:depth]), dict):
            found.append("*" if depth and place[depth - 1] in MAPS else key)
    return found


def _spoilt(name: str, document: Any, place: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    field, value = place[-1], promised.at(document, place)
    free = name.startswith("sweep") and (field == "value" or "settings" in place)
    of_a_map = _fields(document, place)[-1:] == ["*"]
    if not of_a_map and field not in OPTIONAL:
        yield "missing", promised.without(document, place)
    yield "of another type", promised.replaced(document, place, [[[]]])
    yield "of another type", promised.replaced(document, place, {"": 1} if value != {} else 1)
    if isinstance(value, bool):
        yield "a number", promised.replaced(document, place, 1)
    elif isinstance(value, (int, float)):
        if not free:
            yield "a text", promised.replaced(document, place, "" if field in ("value", "expected") else "1")
        if field not in SIGNED and not free:
            yield "negative", promised.replaced(document, place, -0.5)
    elif isinstance(value, str) and not free and (field not in MAY_BE_EMPTY or field in NAMED.get(name, ())):
        if name == "verdict" and field == "action" and place[-2:-1] != ("suspects",) and "suspects" not in place:
            return  # a healthy job asks for nothing; each suspect says what to do
        yield "empty", promised.replaced(document, place, "")


def test_what_a_status_and_a_kind_of_event_imply_is_held(documents: Documents) -> None:
    hang = documents("verdict")[0]
    assert promised.complaints("verdict", {**hang, "status": "healthy"})
    assert promised.complaints("verdict", {**hang, "other_jobs": []})
    assert promised.complaints("verdict", {**hang, "more": 1}) == [
        ": Unevaluated properties are not allowed ('more' was unexpected)"
    ]
    slow = hang["other_jobs"][0]
    assert promised.complaints("verdict", {**slow, "suspects": []}) and promised.complaints(
        "verdict", {**slow, "status": "inefficient"}
    )
    (suspect, *_) = slow["suspects"]
    for wrong in (
        {"cause": "thermal"},
        {"component": "gpu"},
        {"confidence": 0},
        {"lost_percent": 100.5},
        {"ranks": [3, 3]},
    ):
        assert promised.complaints("verdict", {**slow, "suspects": [{**suspect, **wrong}]})
    alarm = next(one for one in documents("watch") if one["kind"] == "alarm")
    assert promised.complaints("watch", {**alarm, "job": None}) and promised.complaints(
        "watch", {**alarm, "kind": "verdict"}
    )
    assert promised.complaints("watch", {**alarm, "drain_host": "node-1"})
    assert promised.complaints("watch", {**alarm, "time": alarm["time"].replace("Z", "+01:00")})


def test_the_schemas_have_the_words_that_the_code_has() -> None:
    every = promised.schemas()
    verdict = every["verdict"]["$defs"]
    causes = {
        one["properties"]["component"]["const"]: one["properties"]["cause"]["enum"]
        for one in verdict["suspect"]["oneOf"]
    }
    assert causes == {component: list(CAUSES[component]) for component in CAUSES}
    assert every["causes"]["properties"]["causes"]["items"]["oneOf"] == verdict["suspect"]["oneOf"]
    assert verdict["part"]["properties"]["kind"]["enum"] == [one.value for one in Kind]
    assert verdict["suspect"]["properties"]["scope"]["enum"] == list(SCOPES)
    assert verdict["verdict"]["properties"]["status"]["enum"] == list(STATUSES)
    assert every["top"]["$defs"]["job"]["properties"]["status"]["enum"] == ["", *STATUSES]
    assert tuple(every["top"]["$defs"]["rank"]["properties"]["parts"]["properties"]) == PARTS
    assert verdict["verdict"]["properties"]["note_codes"]["items"]["enum"] == [one.value for one in NoteCode]
    alarms = [
        one["then"]["properties"]["alarm"]["enum"]
        for one in every["watch"]["allOf"]
        if "alarm" in one["then"]["properties"]
    ]
    troubles = every["blackbox"]["$defs"]["line"]["properties"]["troubles"]["items"]["enum"]
    assert [*alarms, troubles] == [[one.value for one in AlarmKind]] * 4
    assert every["ledger"]["$defs"]["ledger"]["properties"]["seconds"]["propertyNames"]["enum"] == [
        one.value for one in Lost
    ]
    assert every["ledger"]["$defs"]["entry"]["properties"]["scope"]["enum"] == [one.value for one in Scope]
    assert every["sweep"]["$defs"]["state"]["enum"] == list(STATES)
    sources = every["doctor"]["properties"]["sources"]
    assert sources["propertyNames"]["enum"] == [one.value for one in Source]
    assert sources["additionalProperties"]["properties"]["seen"]["enum"] == [one.value for one in Seen]
    assert every["export"]["properties"]["format"]["enum"] == list(FORMATS)


@pytest.mark.parametrize("status", STATUSES)
def test_the_exit_code_that_the_schema_tells_is_the_one_of_the_status(status: str) -> None:
    told = promised.schemas()["verdict"]["$defs"]["verdict"]["properties"]["status"]["description"]
    words = {word.strip(): part.split(":")[0] for part in told.split(";") for word in part.split(":")[1].split(",")}
    verdict = Verdict(status, "j", (), (), 0.0, 0.0, None, StepSeconds(None, None, None), 0.0, (), ())
    assert words[status].split()[-1] == str(verdict.exit_code)


def test_the_files_lie_in_the_package() -> None:
    room = Path(__file__).resolve().parents[4] / "diagnose/face/schemas"
    assert {path.name for path in room.glob("*.json")} == {
        f"{name}{promised.SUFFIX}" for name in promised.schemas()
    } | {"index.json"}
