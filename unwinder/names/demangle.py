"""Demangle C++ symbols to scopes and name, without arguments.

A small parser of our own: names are the target's, and the C++ library's demangler was not made for
hostile input. Grammar: Itanium C++ ABI, 5.1 "External Names".
"""

from __future__ import annotations

from rankscope.probes.base.text import printable

NAME_CAP = 120


def readable(symbol: str) -> str:
    """Shorten a symbol such as `_ZN2at6native3add...` to `at::native::add`. Never raises.

    Arguments and template arguments are dropped. So are version (`@…`) and clone suffix (`.part.0`), also
    from C names, which otherwise stay as they are. Printable, NAME_CAP characters at most.
    """
    bare = symbol.partition("@")[0]
    bare = bare.partition(".")[0] or bare
    text = _scopes(bare) if bare.startswith("_Z") and bare.isascii() else bare
    return printable(text, NAME_CAP)


def _scopes(symbol: str) -> str:
    """Parse scopes and name of an Itanium C++ symbol, as far as possible; else return the symbol itself.

    Long: a branch for each letter of the grammar.
    """
    at, end = 2, len(symbol)
    while True:
        # a name local to a function (use that function), or a static one
        while at < end and symbol[at] in "ZL":
            at += 1
        special = {"TV": "vtable", "TI": "typeinfo", "GV": "guard"}.get(symbol[at : at + 2])
        if special:
            return special
        if symbol[at : at + 2] not in ("Th", "Tv"):
            break
        at = symbol.find("_", at) + 1  # a thunk: its offsets, then its target
        if not at:
            return symbol
    nested = symbol[at : at + 1] == "N"
    at += nested
    parts: list[str] = []
    while at < end:
        letter = symbol[at]
        if letter.isdigit():
            word, at = _source_name(symbol, at)
            if not word:
                break
            parts.append("(anonymous)" if word.startswith("_GLOBAL__N") else word)
        elif letter in "KVrLRO" and nested:
            at += 1
            continue
        elif symbol.startswith("St", at):
            parts.append("std")
            at += 2
            continue
        elif letter == "S":
            at = _behind_substitution(symbol, at)
            continue
        elif letter == "I":
            at = _behind_template(symbol, at)
        elif letter in "CD" and symbol[at + 1 : at + 2].isdigit() and parts:
            parts.append(parts[-1] if letter == "C" else "~" + parts[-1])
            at += 2
        elif letter == "E":
            break
        elif letter.islower() and symbol[at + 1 : at + 2].isalpha() and nested:
            parts.append("operator()" if symbol.startswith("cl", at) else "operator")
            break
        else:
            break
        if not nested and symbol[at : at + 1] != "I":
            break
    return "::".join(parts) or symbol


def _source_name(symbol: str, at: int) -> tuple[str, int]:
    """Parse the length-prefixed name at `at`; return it and the position after it.

    The name is '' where the symbol ends before it does.
    """
    stop = at
    while stop < len(symbol) and stop - at < 4 and symbol[stop].isdigit():
        stop += 1
    length = int(symbol[at:stop])
    word = symbol[stop : stop + length]
    return (word if len(word) == length else ""), stop + length


def _behind_substitution(symbol: str, at: int) -> int:
    """Return the position after the substitution at `at`: S_, S0_, SA_, … or a short one such as Sa.

    Past the end of the symbol if it is unterminated.
    """
    first = symbol[at + 1 : at + 2]  # of a number to base 36, with capitals
    numbered = first.isdigit() or first.isupper() or first == "_"
    stop = symbol.find("_", at) if numbered else at + 1
    return (stop if stop > 0 else len(symbol)) + 1


def _behind_template(symbol: str, at: int) -> int:
    """Return the position after the template arguments (`I…E`) at `at`; the symbol's end where not understood."""
    depth, end = 0, len(symbol)
    while at < end:
        letter = symbol[at]
        if letter.isdigit():
            _, at = _source_name(symbol, at)
            continue
        # A literal: its type is a letter or a name, then its value.
        if letter == "L" and symbol[at + 1 : at + 2] != "_":
            inner = at + 1
            while inner < end and not symbol[inner].isdigit() and symbol[inner] not in "EN":
                inner += 1
            signed = inner == at + 3 and symbol[at + 2] == "n"
            if inner == at + 2 or signed or symbol[inner : inner + 1] == "E":
                at = symbol.find("E", inner) + 1 or end
                continue
            depth += 1
        elif letter in "INXJF":
            depth += 1
        elif letter == "E":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return end
