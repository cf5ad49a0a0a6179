"""Commands that documents show: in indented and fenced blocks, and in `…` within a line.

A block whose first line begins with `$ ` holds commands and what they print, one of JSON none, any other one commands alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
OPERATORS = (README, REPOSITORY / ".github/TUTORIAL.md", REPOSITORY / ".github/FLEETS.md")
# Which test runs the README's commands: tests/lab/test_readme.py beside a job, tests/unit/diagnose/cli/test_readme_commands.py elsewhere,
# what agents are served by tests/unit/diagnose/mcp/test_agent_client.py.
LIVE = ("diagnose", "record", "doctor", "ranks", "causes", "sweep", "blackbox", "top", "watch", "trigger", "ledger")
STORED = ("diagnose", "demo", "report", "export", "bundle", "completion")
SERVED = ("mcp",)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_BETWEEN = ("|", "||", "&", "&&", ";", ";;", "(", ")", "<(", ">", ">>", "<")
_RUN_OTHERS = {"ssh": 1, "do": 0, "source": 0, "then": 0, "sudo": 0}  # words of their own before the next command


def lines(text: str) -> list[str]:
    """Every line of a block that is typed, without prompt and comment."""
    found = [block for language, block in _FENCED.findall(text) if language != "json"]
    found += [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in _INDENTED.findall(_FENCED.sub("", text))]
    typed = []
    for block in found:
        shown = block.splitlines()
        prompted = shown[0].startswith("$ ")
        typed += [line.removeprefix("$ ") for line in shown if line and (line.startswith("$ ") or not prompted)]
    return [re.sub(r"\s+#.*$", "", line) for line in typed]


def commands(text: str) -> list[list[str]]:
    """Each command of the blocks as words, its program first: what ssh or a loop runs, too."""
    return [words for line in lines(text) for words in _parts(line)]


def _parts(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _BETWEEN:
            words.append(word)
            continue
        while words and words[0] in _RUN_OTHERS:
            words = words[1 + _RUN_OTHERS[words[0]] :]
        if words:
            yield words
        words = []


def inline(text: str, program: str) -> list[list[str]]:
    """Words of each `PROGRAM …` within a line of text."""
    outside = _INDENTED.sub("", _FENCED.sub("", text))
    return [shlex.split(said) for said in _INLINE.findall(outside) if said.split()[0] == program]


def of_rankscope(text: str) -> list[list[str]]:
    """Words behind `rankscope`, wherever it is installed, of each time that it is shown."""
    typed = [words for words in commands(text) if words[0].rpartition("/")[2] == "rankscope"]
    return [words[1:] for words in [*typed, *inline(text, "rankscope")]]


def section(text: str, title: str) -> str:
    """Text below a heading, down to the next one."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def words_of(text: str) -> int:
    """Count the words of prose and tables: not those of blocks, nor of tags."""
    prose = re.sub(r"<[^>]+>", "", _INDENTED.sub("", _FENCED.sub("", text)), flags=re.DOTALL)
    return sum(1 for word in prose.split() if re.search(r"\w", word))
