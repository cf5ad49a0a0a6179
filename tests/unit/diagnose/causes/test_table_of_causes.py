"""`rankscope causes`: every registered cause is true to its file, can be proposed, and is printed within 80 columns; one file is enough."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer import causes as hypotheses
from rankscope.diagnose.infer.causes import causes, registry
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.causes.whole_job import Known, WholeJob
from rankscope.diagnose.infer.verdict.contract import COMPONENTS

ROOM = Path(hypotheses.__file__).parent
HELD = Path(__file__).parents[3] / "data/windows/table.json"

ONE_MORE = '''
"""Rank 0 sings."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.observer.sources import Source


@cause("process", "sings", witness="a song", rests_on=[Source.EXITS], says="it sings[ {function}]", action="Let it sing.",
       refines=["python/slow-function"])
def judge(case: Case) -> Iterator[Hypothesis]:
    yield case.charge("process", "sings", case.excess_s, CONVICTED, ())
'''
ASKED = """
import sys
from rankscope.diagnose.infer import causes as hypotheses
from rankscope.diagnose.infer.causes import rank
rank.__path__.append(sys.argv[1])
sys.path[:0] = sys.argv[2:]
import builders
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer.causes.causes import CAUSES
from rankscope.diagnose.infer.verdict.sentence import sentence_of
from rankscope.diagnose.infer.solve.judge import diagnose
run(["causes"])
verdict = diagnose(builders.build(builders.slow_python(3, 0.08)))
print([(one.component, one.cause, one.ranks, one.action) for one in verdict.suspects])
print(sentence_of(verdict))
print(CAUSES["process"])
"""


def test_every_row_is_of_a_component_and_in_the_table_in_order() -> None:
    assert [row.key for row in causes.TABLE] == [row.key for row in sorted(causes.TABLE, key=lambda row: row.order)]
    assert len({row.key for row in causes.TABLE}) == len(causes.TABLE)
    assert tuple(causes.CAUSES) == COMPONENTS and all(causes.CAUSES.values())


@pytest.mark.parametrize("row", causes.TABLE, ids=lambda row: "-".join(row.key))
def test_a_row_has_a_sentence_and_its_file_tells_of_it(row: registry.Cause) -> None:
    source = (ROOM / row.told_by).read_text()
    assert f'"{row.cause}"' in source.replace(f'@cause("{row.component}", "{row.cause}"', ""), (
        "registered, and never proposed"
    )
    assert source.startswith('"""')
    assert registry.sentence(*row.key)
    names = {one.name for one in causes.TABLE}
    assert row.refines <= names - {row.name}


def test_every_function_that_registers_is_asked_or_called() -> None:
    """One that nobody calls makes a cause that can never be reported."""
    asked = {
        *registry.proposers(Case),
        *registry.proposers(WholeJob),
        *registry.proposers(WholeJob, Known),
        *registry.proposers(Spending),
    }
    names = {node.id for path in ROOM.parent.rglob("*.py") for node in _loaded(path)}
    for row in causes.TABLE:
        assert row.proposed_by in asked or row.proposed_by.__name__ in names or row.told_by in _called_in(), row


def _loaded(path: Path) -> Iterator[ast.Name]:
    return (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def _called_in() -> set[str]:
    """Files whose functions another one calls as `module.function`."""
    called = set()
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called |= {f"{path.parent.name}/{node.value.id}.py"} if node.attr in ("charge", "judge") else set()
    return called


def test_the_order_of_asking_is_that_of_the_contract_and_not_of_files() -> None:
    names = [one.__module__.rpartition(".")[2] for one in registry.proposers(Case)]
    assert (
        names.index("gpu") < names.index("cpu") < names.index("memory") < names.index("storage") < names.index("python")
    )
    assert names.index("cpu") < names.index("interrupts") and names.index("python") < names.index("threads")
    assert names[-1] == "workload"


@pytest.mark.parametrize(
    ("args", "said"),
    [(("cpu", "irq"), "registered in rank/interrupts.py already"), (("weather", "rain"), "no such component"),
     (("cpu", "rain", "planet"), "no such component or scope")],
)  # fmt: skip
def test_what_cannot_be_registered_is_refused(args: tuple[str, ...], said: str) -> None:
    scope = args[2] if len(args) > 2 else "rank"
    with pytest.raises(ValueError, match=said):
        registry.cause(args[0], args[1], scope=scope, witness="")(_nothing)


def _nothing(case: Any) -> None: ...


def test_one_file_is_enough_for_a_cause(tmp_path: Path) -> None:
    """Table, contract, sentence and verdict have it; what it is the reason of is not said beside it."""
    (tmp_path / "one_more.py").write_text(ONE_MORE)
    builders = Path(__file__).parents[3] / "builders"
    done = subprocess.run([sys.executable, "-c", ASKED, str(tmp_path), str(builders)], capture_output=True, text=True, timeout=120,
                          check=True)  # fmt: skip
    *table, suspects, sentence, contract = done.stdout.splitlines()
    assert any(line.split()[:3] == ["process/sings", "rank", "-"] for line in table)
    assert suspects == "[('process', 'sings', (3,), 'Let it sing.')]"
    assert sentence.startswith("Rank 3 on node-0: it sings, which costs ")
    assert "'sings'" in contract


def test_the_counts_are_of_rows_that_exist_and_of_the_whole_corpus() -> None:
    """Written by scripts/corpus judge --hold, together with the table that the corpus is held to."""
    found, cases = causes.counted()
    assert set(found) <= causes.KNOWN
    assert all(each.right + each.wrong > 0 for each in found.values())
    assert 100 < sum(each.right + each.wrong for each in found.values()) <= cases
    kinds = json.loads(HELD.read_text())["kinds"].values()
    assert cases == sum(count["cases"] for doses in kinds for count in doses.values())


def test_the_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["causes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    assert lines[0].split() == ["CAUSE", "SCOPE", "RIGHT", "BY"]
    assert [line.split()[0] for line in lines[1 : len(causes.TABLE) + 1]] == [row.name for row in causes.TABLE]


def test_the_json_has_every_row_with_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["causes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "rankscope.causes/1"
    rows = {(row["component"], row["cause"], row["scope"]): row for row in said["causes"]}
    assert set(rows) == causes.KNOWN
    found, _ = causes.counted()
    assert {key: (row["right"], row["wrong"]) for key, row in rows.items() if row["right"] + row["wrong"]} == {
        key: (each.right, each.wrong) for key, each in found.items()
    }
    assert said["named_by_nothing"] == []
