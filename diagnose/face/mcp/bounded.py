"""Answers of a bounded size: long lists are cut, and a cursor leads to the rest. Text is cleaned and cut too.

All lists of a document are cut to one length, the longest that lets it fit: what is short stays whole. A shorter list still fits the
schema of its document, as no list needs more than two items.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import UsageError

TEXT_MOST = 600  # characters of one text
LEAST = 2  # items that are left of a list: some are pairs
DOCUMENTS_MOST = 8  # whose rest can still be asked for
LEFT_OUT_MOST = 12  # lists that are listed as cut
_LENGTHS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, LEAST)
_SHORTER_TEXTS = (200, 60)
_DEEPEST = 96  # levels that are given: who checks a document against its schema needs many frames for each
_NESTED_MOST = 600  # levels of a document; a tree of stacks has two for each of its frames
_CURSOR_MOST = 2000


class Expired(UsageError):
    """The rest of an answer is not kept any more."""

    help = "Ask the tool itself again, for less: a job, a rank, fewer columns."


class TooLarge(UsageError):
    """A document that does not fit, however much is cut."""

    help = "Ask for less: one job, one window, fewer columns or rows."


@dataclass(frozen=True, slots=True)
class Cut:
    """A list that was cut: a JSON pointer to it, the items that are given, and how many there are."""

    part: str
    given: int
    of: int


@dataclass(frozen=True, slots=True)
class Part:
    """What fits of a document, and the lists that were cut, those that lost most first."""

    content: Any
    cuts: tuple[Cut, ...]


def tidy(content: Any, most: int = TEXT_MOST, depth: int = 0) -> Any:
    """Clean and cut all text of a document, keys too, to `most` characters; NaN and infinity become null.

    Raises TooLarge if it is nested too deeply.
    """
    if depth > _NESTED_MOST:
        raise TooLarge("the answer is nested too deeply")
    if isinstance(content, str):
        return clean(content, most)
    if isinstance(content, dict):
        return {clean(str(key), most): tidy(value, most, depth + 1) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [tidy(value, most, depth + 1) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def size_of(content: Any) -> int:
    """Return the bytes of a document as JSON."""
    return len(json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))


def fit(content: Any, most_bytes: int) -> Part:
    """Cut the lists of a tidy document, and at last its texts, until it has at most so many bytes. Raises TooLarge."""
    cuts: list[Cut] = []
    shallow = _cut(content, None, "", cuts)
    if size_of(shallow) <= most_bytes:
        return Part(shallow, _sorted(cuts))
    for length in _LENGTHS:
        cuts = []
        shorter = _cut(content, length, "", cuts)
        if cuts and size_of(shorter) <= most_bytes:
            return Part(shorter, _sorted(cuts))
    for texts in _SHORTER_TEXTS:
        cuts = []
        shorter = tidy(_cut(content, LEAST, "", cuts), texts)
        if size_of(shorter) <= most_bytes:
            return Part(shorter, _sorted(cuts))
    raise TooLarge(f"the answer has more than {most_bytes} bytes, however much of its lists is cut")


def _sorted(cuts: list[Cut]) -> tuple[Cut, ...]:
    """Sort cuts, those that lost most items first."""
    return tuple(sorted(cuts, key=lambda one: one.given - one.of))


def _cut(content: Any, length: int | None, part: str, cuts: list[Cut], depth: int = 0) -> Any:
    """Cut all lists to a length (None: to none), and those that are nested too deeply to nothing; add them to `cuts`.

    `part`: JSON pointer to `content`; `depth`: its level.
    """
    if isinstance(content, dict):
        return {key: _cut(value, length, f"{part}/{_escaped(key)}", cuts, depth + 1) for key, value in content.items()}
    if isinstance(content, list):
        given = content[: 0 if depth > _DEEPEST else length]
        if len(given) < len(content):
            cuts.append(Cut(part, len(given), len(content)))
        return [_cut(value, length, f"{part}/{at}", cuts, depth + 1) for at, value in enumerate(given)]
    return content


def _escaped(key: str) -> str:
    """Escape a key for a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclass(slots=True)
class Kept:
    """Keeps the last documents, of which clients may request the rest of lists that were cut."""

    documents: OrderedDict[str, Any] = field(default_factory=OrderedDict)

    def keep(self, content: Any) -> str:
        """Store a document, drop the oldest above `DOCUMENTS_MOST`, and return its random name."""
        name = secrets.token_hex(6)
        self.documents[name] = content
        while len(self.documents) > DOCUMENTS_MOST:
            self.documents.popitem(last=False)
        return name

    def rest(self, cursor: str, most_bytes: int) -> tuple[dict[str, Any], str]:
        """Return the next items of a list that was cut, and the cursor to those after them, '' if there are none.

        Raises Expired, TooLarge.
        """
        name, part, first, items = self._found(cursor)
        shown: list[Any] = []
        room = most_bytes
        for whole in items[first:]:
            item = _cut(whole, None, "", [])
            size = size_of(item) + 2
            if size > room:
                break
            shown.append(item)
            room -= size
        if not shown and first < len(items):
            shown = [fit(items[first], most_bytes).content]
        after = first + len(shown)
        following = cursor_to(name, part, after) if after < len(items) else ""
        return {"part": part, "first": first, "of": len(items), "items": shown}, following

    def _found(self, cursor: str) -> tuple[str, str, int, list[Any]]:
        """Parse a cursor: document, part, first item, and the whole list. Raises Expired."""
        name, _, rest = cursor[:_CURSOR_MOST].partition(":")
        first, _, part = rest.partition(":")
        if name not in self.documents or not (first.isascii() and first.isdigit() and len(first) < 10):
            raise Expired(f"no answer has the rest {clean(cursor, 100)!r} any more")
        content = self.documents[name]
        for key in _keys(part):
            if isinstance(content, dict) and key in content:
                content = content[key]
            elif isinstance(content, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(content):
                content = content[int(key[:9])]
            else:
                raise Expired(f"that answer has no part {clean(part, 100)!r}")
        if not isinstance(content, list):
            raise Expired(f"the part {clean(part, 100)!r} of that answer is no list")
        return name, part, int(first), content


def cursor_to(name: str, part: str, first: int) -> str:
    """Return the cursor to the items from `first` on, of the list `part` (JSON pointer) in the document `name`."""
    return f"{name}:{first}:{part}"


def _keys(part: str) -> Iterator[str]:
    """Yield the keys and indices of a JSON pointer."""
    for key in part.split("/")[1:]:
        yield key.replace("~1", "/").replace("~0", "~")
