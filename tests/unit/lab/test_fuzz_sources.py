"""What a count of inputs holds for: the code that a parser reaches, constants and functions that no seed calls among it, and no other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest

from campaignkit import sources
from campaignkit.fuzz.campaign import REGRESSIONS, Fuzz, parts_of
from campaignkit.fuzz.targets import TARGETS
from campaignkit.reached import PACKAGE, Modules, Reached

# "ours": the name of the package, which is put in below.
PARSER = """
from ours.budgets import MOST
from ours.shapes import Shape
import ours.numbers as numbers
from ours import whole
import struct

TABLE = {1: "a"}
UNUSED = 7

def parse(data: bytes, shape: Shape) -> int:
    '''What it does.'''
    if data[:1] == b"x":  # seldom
        return rare(data)
    return len(data) * numbers.twice(MOST) + shape.size()

def rare(data: bytes) -> int:
    from ours.late import LATE
    return hash(whole) + LATE

def other() -> int:
    return UNUSED
"""
_TEXTS = {
    "ours.parser": PARSER,
    "ours.budgets": "BASE = 4\nMOST = BASE * 2\nFREE = 1\n",
    "ours.shapes": "class Base:\n    def size(self) -> int:\n        return 1\n\nclass Shape(Base):\n    pass\n",
    "ours.numbers": "def twice(number: int) -> int:\n    return 2 * number\n\ndef thrice(number: int) -> int:\n    return 3\n",
    "ours.whole": "ANY = 1\n",
    "ours.late": "from ours.kept import kept, ROWS\nLATE = len(ROWS)\n",
    "ours.kept": "ROWS = {}\ndef kept(one):\n    ROWS[one] = 1\n    return one\n@kept\ndef row():\n    return 1\n",
}
TEXTS = {name.replace("ours", PACKAGE): text.replace("ours", PACKAGE) for name, text in _TEXTS.items()}
LINE = PARSER.splitlines().index("def parse(data: bytes, shape: Shape) -> int:") + 1


def fingerprint(read: Callable[[str], str | None]) -> str:
    reached = Reached(Modules(read))
    reached.add("rankscope.parser", LINE)
    return sources.digest(reached.parts)


def changed(module: str, before: str, after: str) -> bool:
    assert before in TEXTS[module]
    texts = TEXTS | {module: TEXTS[module].replace(before, after)}
    return fingerprint(texts.get) != fingerprint(TEXTS.get)


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        pytest.param("rankscope.parser", "data[:1]", "data[:2]", id="what is called"),
        pytest.param("rankscope.budgets", "MOST = BASE", "MOST = 3 * BASE", id="a constant of a file in which nothing is called"),
        pytest.param("rankscope.budgets", "BASE = 4", "BASE = 5", id="what that is made of"),
        pytest.param("rankscope.numbers", "2 * number", "4 * number", id="a function of a module that is named whole"),
        pytest.param("rankscope.shapes", "return 1", "return 2", id="a method of what an argument is, by its base"),
        pytest.param("rankscope.parser", "hash(whole)", "len(whole)", id="a function that no seed gets to"),
        pytest.param("rankscope.late", "LATE = ", "LATE = 1 + ", id="a constant imported there"),
        pytest.param("rankscope.kept", "    return 1\n", "    return 2\n", id="what a decorator of ours keeps in a table"),
        pytest.param("rankscope.whole", "ANY = 1", "ANY = 2", id="anything of a module that is handed on"),
        pytest.param("rankscope.parser", f"from {PACKAGE}.budgets", f"from {PACKAGE}.whole", id="where a name is from"),
        pytest.param("rankscope.numbers", "def twice", "print(1)\ndef twice", id="what runs at an import"),
    ],
)  # fmt: skip
def test_a_count_does_not_outlive_a_change_of_what_the_parser_reaches(module: str, before: str, after: str) -> None:
    assert changed(module, before, after)


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        pytest.param("rankscope.parser", "return UNUSED", "return 8", id="another function of the file"),
        pytest.param("rankscope.parser", "UNUSED = 7", "UNUSED = 8", id="a constant that only that one uses"),
        pytest.param("rankscope.budgets", "FREE = 1", "FREE = 2\nNEW = 3", id="another constant beside"),
        pytest.param("rankscope.numbers", "return 3", "return 4", id="another function of a module that is named whole"),
        pytest.param("rankscope.parser", "  # seldom", "  # often\n", id="a comment"),
        pytest.param("rankscope.parser", "What it does", "What it says", id="a docstring"),
    ],
)  # fmt: skip
def test_a_count_outlives_a_change_of_anything_else(module: str, before: str, after: str) -> None:
    assert not changed(module, before, after)


def test_constants_of_files_in_which_nothing_is_called_belong_to_the_real_parsers() -> None:
    found = {
        name: {(part.module, part.name) for part in parts} for name, parts in parts_of(["steps", "parquet"]).items()
    }
    assert ("rankscope.diagnose.budgets", "CELLS_MOST") in found["steps"]
    assert ("rankscope.observer.window.tables", "MOST_ROWS") in found["parquet"]
    assert not [module for module, _ in found["parquet"] if module.startswith("rankscope.diagnose")]


def test_the_source_of_a_parser_is_the_same_each_time_it_is_asked_for() -> None:
    names = ["line-tables", "stacks", "hook"]
    first = Fuzz().sources(names)
    assert first == Fuzz().sources(names[::-1]) and len(set(first.values())) == 3


def _strays(name: str) -> list[tuple[str, int]]:
    """What inputs that are no seeds call, and seeds do not reach."""
    target = next(target for target in TARGETS if target.name == name)
    seeds = target.all_seeds()
    modules = Modules(sources.text_of)
    reached = Reached(modules)
    for module, line in sources.calls_of(target.run, seeds):
        reached.add(module, line)
    known = set(reached.parts)
    kept = [path.read_bytes() for path in sorted((REGRESSIONS / name).glob("*"))]
    found = []
    for module, line in sources.calls_of(
        target.run, [seed[: len(seed) * part // 7] for seed in seeds for part in range(7)] + kept
    ):
        more = Reached(modules)
        more.add(module, line)
        found += [(module, line)] if set(more.parts) - known else []
    return found


def test_whatever_broken_inputs_call_was_known_from_the_seeds() -> None:
    names = [target.name for target in TARGETS]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        strays = dict(zip(names, pool.map(_strays, names, chunksize=1), strict=True))
    assert {name: found for name, found in strays.items() if found} == {}
