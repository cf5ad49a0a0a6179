"""What may be shown and kept of a process's command line: what it runs and the names of its options, never their values.

A value may be a key or a password, and nothing says which. Pure.
"""

from __future__ import annotations

import re
import shlex

from rankscope.probes.text import printable

VALUED = ("-X", "-W", "--check-hash-based-pycs")  # options of the interpreter with a value of their own
HIDDEN = "…"
_WORDS = 64  # of a command line
_OPTION = re.compile(r"(--[A-Za-z][\w.-]*)|(-[A-Za-z])", re.ASCII)
_PASSWORD = re.compile(r"(?<=://)[^/\s@]*(?:@[^/\s@]*)*(?=@)")  # and the user's name, which is a key as often


def words_of(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command line. setproctitle writes one text over the arguments, and nulls over what is left of them."""
    words = list(arguments[:_WORDS])
    while words and not words[-1].strip():
        words.pop()
    return tuple(words[0].split()[:_WORDS]) if len(words) == 1 else tuple(words)


def is_python(command: tuple[str, ...]) -> bool:
    """Whether a command line is an interpreter's, which names its script or module."""
    return bool(command) and command[0].strip().rpartition("/")[2].startswith(("python", "pypy"))


def without_passwords(text: str) -> str:
    """`text` with what is before the @ of each URL in it left out."""
    return _PASSWORD.sub(HIDDEN, text)


def shown(arguments: tuple[str, ...], most: int) -> str:
    """A command line for people: interpreter, script and names of options, quoted as in a shell, made printable, cut at `most`."""
    words = words_of(arguments)
    if not words:
        return ""
    known = _program_words(words)
    kept = [without_passwords(word[:most]) for word in words[:known]]
    for word in words[known:]:
        said = _option(word)
        if said != HIDDEN or kept[-1] != HIDDEN:
            kept.append(said)
    return printable(" ".join(one if one.endswith(HIDDEN) else shlex.quote(one) for one in kept), most)


def _program_words(words: tuple[str, ...]) -> int:
    """How many words say what is run: the program; of Python its own options and the script or module."""
    if not is_python(words):
        return 1
    valued = False
    for place, word in enumerate(words[1:], 1):
        if valued:
            valued = False
        elif word == "-m":
            return min(place + 2, len(words))
        elif word == "-c":
            return place + 1
        elif word in VALUED:
            valued = True
        elif not word.startswith("-"):
            return place + 1
    return len(words)


def _option(word: str) -> str:
    found = _OPTION.match(word)
    if found is None:
        return HIDDEN
    return found[0] if found.end() == len(word) else f"{found[0]}{'=' if word[found.end()] == '=' else ''}{HIDDEN}"
