"""Documents: links lead somewhere, the README stays short, and outputs that are shown are what is printed today."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from documents import README, REPOSITORY, words_of
from testkit import shown

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [REPOSITORY / name for name in shown.DOCUMENTS]


def anchors(text: str) -> set[str]:
    """What GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(place: Path, text: str) -> list[str]:
    """Links of a document to files or headings that are not there."""
    found = []
    for link in LINK.findall(FENCED.sub("", text)):
        if re.match(r"[a-z]+:", link):  # of the web: nobody asks it here
            continue
        name, _, anchor = link.partition("#")
        target = (place.parent / name).resolve() if name else place
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            found.append(link)
    return found


def test_links_between_documents_lead_to_files_and_headings() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    places = [REPOSITORY / name for name in listed if (REPOSITORY / name).exists()]
    assert sum(len(LINK.findall(place.read_text("utf-8"))) for place in places) > 40
    assert {str(place): links for place in places if (links := broken(place, place.read_text("utf-8")))} == {}


def test_a_link_to_no_file_or_no_heading_is_broken(tmp_path: Path) -> None:
    place = tmp_path / "A.md"
    place.write_text(
        "# One, two: `three`\n\n[a](#one-two-three) [b](#four) [c](A.md) [d](B.md) [e](A.md#one-two-three) [f](A.md#five)\n"
    )
    assert broken(place, place.read_text()) == ["#four", "B.md", "A.md#five"]


def test_the_readme_is_short_enough_to_be_read() -> None:
    text = README.read_text("utf-8")
    assert 1300 <= words_of(text) <= 1850
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "  <"))) <= 150


def test_the_longer_documents_are_reached_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(README.read_text("utf-8"))}
    there = {f".github/{path.name}" for path in (REPOSITORY / ".github").glob("*.md")}
    assert there - linked == set()


@pytest.mark.parametrize("place", DOCUMENTS, ids=lambda place: str(place.name))
def test_outputs_that_are_shown_are_printed_today(place: Path) -> None:
    """Where words of a verdict were changed on purpose: PYTHONPATH=scripts .venv/bin/python -m testkit.shown --write."""
    text = place.read_text("utf-8")
    assert len(list(shown.blocks(text))) == text.count("```console")
    with shown.corpus_of([text]) as corpus:
        for block in shown.blocks(text):
            assert shown.made(block, corpus) == block.plain, block.name


def test_a_block_is_put_right_and_keeps_its_marks_where_lines_stay() -> None:
    text = "<!-- window: quiet-1/ddp-healthy-2 -->\n```console\n$ rankscope diagnose DIR  ← 1\nHEALTHY  7 ranks  ← 2\n```\n"
    with shown.corpus_of([text]) as corpus:
        now, differ = shown.renewed(text, corpus)
        assert differ == ["quiet-1/ddp-healthy-2"]
        first = "HEALTHY  Nobody is to blame: 2 ranks on vm, 302 steps of 0.033 s, whose length\n       changed meanwhile.\n"
        assert f"$ rankscope diagnose DIR  ← 1\n{first}" in now
        assert shown.renewed(now, corpus) == (now, [])
