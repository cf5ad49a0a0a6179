"""Command lines with values hidden: what a process runs and the names of its options.

A value may be a key or a password, and nothing marks it as such. Pure.
"""

from __future__ import annotations

import re
import shlex

from rankscope.probes.base.text import printable

# options of the interpreter that are followed by a value
VALUED = ("-X", "-W", "--check-hash-based-pycs")
HIDDEN = "…"
_WORDS = 64  # words of a command line that are read
_OPTION = re.compile(r"(--[A-Za-z][\w.-]*)|(-[A-Za-z])", re.ASCII)
# and the user name, which is a key just as often
_PASSWORD = re.compile(r"(?<=://)[^/\s@]*(?:@[^/\s@]*)*(?=@)")


def words_of(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command line, at most `_WORDS`, without blank ones at its end.

    A single argument is split at blanks: setproctitle writes one text over the arguments, and nulls over the
    rest of them.
    """
    words = list(arguments[:_WORDS])
    while words and not words[-1].strip():
        words.pop()
    return tuple(words[0].split()[:_WORDS]) if len(words) == 1 else tuple(words)


def is_python(command: tuple[str, ...]) -> bool:
    """Tell whether a command line runs a Python interpreter."""
    return bool(command) and command[0].strip().rpartition("/")[2].startswith(("python", "pypy"))


def without_passwords(text: str) -> str:
    """Replace user and password in each URL of `text` by '…'."""
    return _PASSWORD.sub(HIDDEN, text)


def shown(arguments: tuple[str, ...], most: int) -> str:
    """Format a command line for display: interpreter, script and option names, values hidden.

    Quoted as in a shell, printable, cut at `most` characters.
    """
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
    """Count the leading words that name what is run: the program, or for Python its options and the
    script or module.
    """
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
    """Return the option's name, with '=…' or '…' in place of a value; '…' for a word that is no option."""
    found = _OPTION.match(word)
    if found is None:
        return HIDDEN
    return found[0] if found.end() == len(word) else f"{found[0]}{'=' if word[found.end()] == '=' else ''}{HIDDEN}"
