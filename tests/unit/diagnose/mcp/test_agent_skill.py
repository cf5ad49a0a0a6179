"""What agents are told beside the tools is true: the skill names tools, fields and statuses that are there; the configuration works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer.main

from rankscope.diagnose.face.cli.main import app
from rankscope.diagnose.face.mcp import of_host, places, tools
from rankscope.diagnose.face.mcp.contracts import command_schema
from rankscope.diagnose.infer.verdict.contract import STATUSES
from rankscope.probes.base.errors import NotPermitted

REPOSITORY = Path(__file__).resolve().parents[4]
SKILL = (REPOSITORY / "diagnose/face/mcp/SKILL.md").read_text()


def test_the_skill_names_every_tool_and_none_that_is_not_there() -> None:
    assert re.match(r"---\nname: rankscope\ndescription: .{50,1000}\n---\n", SKILL)
    table = SKILL[SKILL.index("## Which tool when") : SKILL.index("## How to read an answer")]
    named = {word for row in table.splitlines() if row.startswith("| ") for word in re.findall(r"`(\w+)`", row)}
    arguments = {name for tool in tools.ALL for name in tool.arguments}
    assert set(tools.BY_NAME) <= named
    assert named - set(tools.BY_NAME) <= arguments | {"tool", "left_out"}


def test_fields_and_words_that_the_skill_explains_are_in_verdicts() -> None:
    part = SKILL[SKILL.index("## How to read a verdict") : SKILL.index("## What never to do")]
    shown = json.dumps(command_schema("verdict"))
    words = set(re.findall(r"`([a-z_]+)`", part)) - set(tools.BY_NAME)
    assert {word for word in words if f'"{word}"' not in shown} == set()
    assert set(STATUSES) <= words


def test_the_configuration_in_the_readme_starts_a_command_that_takes_these_options() -> None:
    text = (REPOSITORY / "README.md").read_text()
    [shown] = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    server = json.loads(shown)["mcpServers"]["rankscope"]
    words = [server["command"], *server["args"]]
    rest = words[words.index("/usr/local/bin/rankscope") + 1 :]
    assert rest[0] == "mcp"
    typer.main.get_command(app).commands["mcp"].make_context("mcp", rest[1:])  # type: ignore[attr-defined]


def test_this_host_is_observed_by_root_alone_and_not_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = places.Places((), Path("/nowhere"), Path("/nowhere"))
    monkeypatch.setattr(of_host.os, "geteuid", lambda: 1000)
    with pytest.raises(NotPermitted):
        of_host.diagnose_now(nowhere, {})
    of_host._looks.clear()
    for number in range(of_host.LIVE_EACH_HOUR):
        of_host._count(1000.0 + number)
    with pytest.raises(of_host.LookedEnough):
        of_host._count(2000.0)
    of_host._count(1000.0 + 3600.0)
    of_host._looks.clear()
