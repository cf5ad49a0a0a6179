"""Outputs that documents show, made again from recorded windows and compared with what stands there.

`<!-- window: ARCHIVE/CASE -->` before a block of `$ rankscope …` with output below: DIR is that case of the corpus.
`<!-- service: … -->` before a block of `$ journalctl …`: what the service says of its verdict. `← N` at a line's end is a mark for
readers, no output.

PYTHONPATH=scripts .venv/bin/python -m testkit.shown            # names blocks that differ; 1 where one does
PYTHONPATH=scripts .venv/bin/python -m testkit.shown --write    # puts today's output in their place
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from corpuskit.archive import HOME, SUFFIX, Corpus, opened
from labkit.machine.shell import REPOSITORY
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.service import events
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.looks.look import Seen

DOCUMENTS = ("README.md", ".github/TUTORIAL.md")
_BLOCK = re.compile(
    r"^<!-- (?P<source>window|service): (?P<archive>[\w-]+)/(?P<case>[\w.+-]+) -->\n```console\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r" *← \d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document: where its output comes from, and its text with the marks."""

    source: str
    archive: str
    case: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.archive}/{self.case}"

    @property
    def plain(self) -> str:
        """The text as a terminal has it."""
        return _MARK.sub("", self.text)

    @property
    def commands(self) -> list[str]:
        return [line[2:] for line in self.plain.splitlines() if line.startswith("$ ")]


def blocks(text: str) -> Iterator[Block]:
    """All blocks of a document that say where their output comes from."""
    for found in _BLOCK.finditer(text):
        yield Block(**found.groupdict())


def made(block: Block, corpus: Corpus) -> str:
    """The block's commands, each with what it prints today."""
    case = next(case for case in corpus.cases if (case.archive, case.name) == (block.archive, block.case))
    windows = [str(path) for path in corpus.windows(case)]
    lines = []
    with tempfile.TemporaryDirectory(prefix="shown-") as folder, _inside(folder):
        for command in block.commands:
            said = _printed(command, windows) if block.source == "window" else _said(windows)
            lines += [f"$ {command}\n", said]
    return "".join(lines)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Work in another folder meanwhile: that is where commands write what they are told to."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _printed(command: str, windows: list[str]) -> str:
    program, *words = shlex.split(command, comments=True)
    if program != "rankscope":
        raise ValueError(f"a block of a window shows what rankscope prints, not {program}")
    given = [each for word in words for each in (windows if word == "DIR" else [word])]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        run(given)
    return out.getvalue()


def _said(windows: list[str]) -> str:
    """The service's line of a verdict, in UTC."""
    verdict = json.loads(_printed("rankscope diagnose DIR --json", windows))
    seen = Seen(Alarm(AlarmKind.ASKED, verdict["job"], 0.0, ""), verdict, "", None)
    end = datetime.fromisoformat(verdict["window"]["end"].replace("Z", "+00:00"))
    return f"{events.of_look(seen, end.timestamp()).line}\n"


def marked(block: Block, output: str) -> str:
    """Put the reader's marks of a block behind the lines that are still there."""
    marks = {_MARK.sub("", line): line for line in block.text.splitlines() if _MARK.search(line)}
    return "".join(f"{marks.pop(line, line)}\n" for line in output.splitlines())


@contextlib.contextmanager
def corpus_of(documents: list[str]) -> Iterator[Corpus]:
    """The archives that these texts take their outputs from, unpacked, and times of day in UTC."""
    names = sorted({block.archive for text in documents for block in blocks(text)})
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        with opened([HOME / f"{name}{SUFFIX}" for name in names]) as corpus:
            yield corpus
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


def renewed(text: str, corpus: Corpus) -> tuple[str, list[str]]:
    """A document with today's outputs, and the names of the blocks that differed."""
    differ: list[str] = []

    def put(found: re.Match[str]) -> str:
        block = Block(**found.groupdict())
        output = made(block, corpus)
        if output == block.plain:
            return found[0]
        differ.append(block.name)
        return found[0].replace(block.text, marked(block, output))

    return _BLOCK.sub(put, text), differ


def main(arguments: list[str]) -> int:
    """The exit code: 1 where a block differs and is not written, 64 wrong usage."""
    if arguments not in ([], ["--write"]):
        print("usage: python -m testkit.shown [--write]", file=sys.stderr)
        return 64
    texts = {name: (REPOSITORY / name).read_text("utf-8") for name in DOCUMENTS}
    some = False
    with corpus_of(list(texts.values())) as corpus:
        for name, text in texts.items():
            now, differ = renewed(text, corpus)
            some = some or bool(differ)
            for block in differ:
                print(f"{name}: {block} prints something else today")
            if arguments and differ:
                (REPOSITORY / name).write_text(now, "utf-8")
    return 1 if some and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
