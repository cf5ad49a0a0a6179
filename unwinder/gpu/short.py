"""Shorten the mangled name of a GPU kernel for people: `vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>`.

What a kernel of a library of templates computes is in its template arguments, so those are read,
unlike for functions of a CPU (unwinder/names/demangle.py). Arguments are given without their
scopes and the same once, those of `std` without their own arguments, a lambda by the function that
it is in. Pure.
Grammar: Itanium C++ ABI, 5.1; substitutions are not resolved, as they stand for what was there
before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rankscope.probes.base.text import printable
from rankscope.unwinder.names.demangle import NAME_CAP, readable

_READ_CHARACTERS = 4096  # of a mangled name; CUTLASS writes 20,000
_MAX_DEPTH = 64
_SHOWN_DEPTH = 6  # of arguments within arguments, two a level and one for a lambda
_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "int8", "h": "uint8", "s": "int16", "t": "uint16", "i": "int",
    "j": "uint", "l": "long", "m": "ulong", "x": "int64", "y": "uint64", "n": "int128", "o": "uint128", "f": "float",
    "d": "double", "e": "long double", "g": "float128", "z": "...",
}  # fmt: skip
_BUILTIN_D = {
    "a": "auto", "c": "auto", "n": "nullptr", "h": "half", "i": "char32", "s": "char16", "u": "char8", "f": "decimal",
    "d": "decimal", "e": "decimal",
}  # fmt: skip
_STATIC = re.compile(r"__nv_static_(\d{1,4})_")
_LAMBDA, _UNNAMED, _OPERATOR = "lambda", "unnamed", "operator"
_NAMELESS = (_LAMBDA, _UNNAMED, _OPERATOR, "operator()")


class _Unread(Exception):
    """The rest of the name is not understood, or was cut off."""


@dataclass(slots=True)
class _Name:
    """Parts of a name that are read so far.

    Scopes, the last one being its own name; its template arguments; and the types of the parameters of
    a lambda.
    """

    scopes: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)


def short(symbol: str) -> str:
    """Shorten the mangled name of a kernel to at most NAME_CAP characters. Never raises.

    Names that are not mangled are only made printable.
    """
    symbol = _without_module(symbol)
    head = readable(symbol)
    if not symbol.startswith("_Z") or head == symbol:
        return head
    reader = _Reader(symbol[:_READ_CHARACTERS])
    whole = True
    try:
        reader.head()
    except (_Unread, RecursionError):
        whole = False
    arguments = _once(reader.of_head.arguments)
    if not arguments:
        return head
    text = ", ".join(arguments) + ("" if whole else ", …")
    full = f"{head}<{text}>"
    if len(full) > NAME_CAP:
        full = f"{head.rpartition('::')[2]}<{text}>"
    return printable(full if len(full) <= NAME_CAP else f"{full[: NAME_CAP - 2]}…>", NAME_CAP)


def _once(arguments: list[str]) -> list[str]:
    """Drop arguments that are empty, or the same as the one before."""
    shown = [one for one in arguments if one]
    return [one for before, one in zip(["", *shown], shown, strict=False) if one != before]


def _without_module(symbol: str) -> str:
    """Drop the prefix `__nv_static_LENGTH_MODULE_` of a symbol.

    The compiler puts it before a static kernel of a separately compiled module.
    """
    prefix = _STATIC.match(symbol)
    return symbol[prefix.end() + int(prefix[1]) + 1 :] or symbol if prefix else symbol


class _Reader:
    """Reads a mangled name from its beginning; raises _Unread where it is not understood or cut off.

    Methods pass at least one character, or raise.
    """

    def __init__(self, symbol: str) -> None:
        self._text, self._at, self._depth = symbol, 2, 0
        self.of_head = _Name()

    def head(self) -> None:
        """Read the name of the function itself into `of_head`."""
        self._name(self.of_head)

    def _next(self, *wanted: str) -> bool:
        """Pass the first of the texts `wanted` that comes next; return whether one did."""
        for one in wanted:
            if self._text.startswith(one, self._at):
                self._at += len(one)
                return True
        return False

    def _peek(self) -> str:
        """Return the next character without passing it. Raises _Unread at the end."""
        if self._at >= len(self._text):
            raise _Unread
        return self._text[self._at]

    def _until(self, end: str) -> str:
        """Return the text up to `end`, and pass both. Raises _Unread where `end` does not come."""
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise _Unread
        text = self._text[self._at : stop]
        self._at = stop + len(end)
        return text

    def _name(self, into: _Name) -> _Name:
        """Read a name, which may be nested or local to a function, into `into`; return `into`. Raises _Unread."""
        if self._next("N"):
            while self._next("K", "V", "r", "R", "O"):
                pass
            while not self._next("E"):
                self._component(into)
        elif self._next("Z"):
            self._encoding(into)
            if not self._next("s"):
                self._name(into)
            self._discriminator()
        else:
            while self._next("L"):
                pass
            self._component(into)
            if into.scopes == ["std"]:
                self._component(into)
            if self._at < len(self._text) and self._peek() == "I":
                self._component(into)
        return into

    def _discriminator(self) -> None:
        """Skip the number that distinguishes equal local names (`_0`, `__10_`), if one comes next."""
        if self._next("__"):
            self._until("_")
        elif self._next("_"):
            self._at += 1

    def _encoding(self, into: _Name) -> None:
        """Read a function's name into `into`, and skip the types of its parameters up to `E`. Raises _Unread."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unread
        self._name(into)
        while not self._next("E"):
            self._type()
        self._depth -= 1

    def _component(self, into: _Name) -> None:
        """Read one part of a name into `into`: a scope, template arguments, a lambda, an operator.

        Raises _Unread.
        """
        letter = self._peek()
        if letter.isdigit():
            word = self._source_name()
            if not word.startswith("_GLOBAL__N"):
                into.scopes.append(word)
                into.arguments.clear()
        elif letter == "I":
            into.arguments[:] = []
            self._arguments(into.arguments)
        elif letter == "S":
            if self._next("St"):
                into.scopes.append("std")
            else:
                self._substitution()
        elif letter == "T":
            self._parameter()
        elif self._next("Ul"):
            into.parameters.clear()
            while not self._next("E"):
                into.parameters.append(self._type())
            self._until("_")
            into.scopes.append(_LAMBDA)
        elif self._next("Ut"):
            self._until("_")
            into.scopes.append(_UNNAMED)
        elif self._next("L", "M"):
            pass
        elif self._next("B"):
            self._source_name()
        elif letter in "CD":
            self._at += 2
        elif letter.islower():
            self._at += 2
            into.scopes.append("operator()" if self._text.startswith("cl", self._at - 2) else _OPERATOR)
            if self._text.startswith("cv", self._at - 2):
                self._type()
        else:
            raise _Unread

    def _source_name(self) -> str:
        """Read a name that its length precedes: `3add`. Raises _Unread."""
        begin = self._at
        while self._at < len(self._text) and self._at - begin < 5 and self._text[self._at].isdigit():
            self._at += 1
        if begin == self._at or not self._text[begin : self._at].isascii():
            raise _Unread
        length = int(self._text[begin : self._at])
        word = self._text[self._at : self._at + length]
        if not length or len(word) < length:
            raise _Unread
        self._at += length
        return word

    def _substitution(self) -> str:
        """Read a substitution; return the short one's name ('string' for `Ss`), '' for `S_`, `S0_` (not resolved).

        Raises _Unread.
        """
        self._at += 1
        letter = self._peek()
        if letter in "absiod":
            self._at += 1
            return {"a": "allocator", "b": "basic_string", "s": "string"}.get(letter, "stream")
        self._until("_")
        return ""

    def _parameter(self) -> str:
        """Skip a template parameter (`T_`, `T0_`) and return '': it is not resolved. Raises _Unread."""
        self._at += 1
        self._until("_")
        return ""

    def _arguments(self, into: list[str]) -> None:
        """Append template arguments, `I…E`, or those of a pack, `J…E`, to `into` as short texts.

        Raises _Unread, also for expressions and where they are nested too deep.
        """
        self._at += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unread
        while not self._next("E"):
            if self._peek() == "J":
                self._arguments(into)
            elif self._next("L"):
                into.append(self._literal())
            elif self._peek() == "X":
                raise _Unread
            else:
                into.append(self._type())
        self._depth -= 1

    def _literal(self) -> str:
        """Read a literal up to `E`; return its value ('-1', 'true'), a function's short name, or '' for others.

        Raises _Unread.
        """
        if self._next("_Z"):
            found = _Name()
            self._encoding(found)
            return _shown(found, 0)
        kind = self._type()
        value = self._until("E").replace("n", "-")
        if kind == "bool":
            return {"0": "false", "1": "true"}.get(value, value)
        return value if value.lstrip("-").isdigit() else ""

    def _type(self) -> str:
        """Read a type; return a short text, '' for template parameters and numbered substitutions.

        Raises _Unread, also where types are nested too deep.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unread
        found = self._plain_type()
        self._depth -= 1
        return found

    def _plain_type(self) -> str:
        """Read a type as `_type` does, which limits the depth. Pointers are kept: 'float*'.

        Qualifiers and references are dropped. Raises _Unread.
        """
        letter = self._peek()
        if self._next("r", "V", "K", "R", "O", "C", "G"):
            return self._type()
        if self._next("P"):
            return f"{kind}*" if (kind := self._type()) else ""
        if letter in _BUILTIN:
            self._at += 1
            return _BUILTIN[letter]
        if letter == "D":
            return self._special_type()
        if self._next("F"):
            return self._function_type()
        if self._next("A"):
            size = self._until("_")
            return f"{self._type()}[{size if size.isdigit() else ''}]"
        if self._next("M"):
            self._type()
            return self._type()
        if letter == "T":
            self._parameter()
            return self._maybe_with_arguments("")
        if letter == "S" and not self._text.startswith("St", self._at):
            return self._maybe_with_arguments(self._substitution())
        return _shown(self._name(_Name()), self._depth)

    def _maybe_with_arguments(self, name: str) -> str:
        """Skip template arguments if they come next; return `name` without them. Raises _Unread."""
        if self._at < len(self._text) and self._peek() == "I":
            inner: list[str] = []
            self._arguments(inner)
        return name

    def _function_type(self) -> str:
        """Read a function type after its `F`; return 'result(parameter, …)'. Raises _Unread."""
        self._next("Y")
        types = [self._type()]
        while not self._next("E"):
            types.append(self._type())
        return f"{types[0]}({', '.join(one for one in types[1:] if one != 'void')})"

    def _special_type(self) -> str:
        """Read a type that begins with `D`: 'half', 'bfloat16', 'floatx4'. Raises _Unread."""
        self._at += 1
        letter = self._peek()
        self._at += 1
        if letter == "p":
            return self._type()
        if letter == "F":
            size = self._text[self._at : self._at + 2]
            if self._next("16b"):
                return "bfloat16"
            self._until("_")
            return f"float{size}"
        if letter == "v":
            size = self._until("_")
            return f"{self._type()}x{size}" if size.isdigit() else self._type()
        if letter in _BUILTIN_D:
            return _BUILTIN_D[letter]
        raise _Unread  # decltype: an expression


def _shown(name: _Name, depth: int) -> str:
    """Format a type or function that was read: its own name, with template arguments, marked if a lambda.

    `depth`: how deep it is nested; without arguments beyond _SHOWN_DEPTH, and in `std`. '' without a name.
    """
    own = next((scope for scope in reversed(name.scopes) if scope not in _NAMELESS), "")
    shown = name.scopes[:1] != ["std"] and depth <= _SHOWN_DEPTH
    arguments = _once(name.arguments) if shown else []
    text = f"{own}<{', '.join(arguments)}>" if arguments else own
    if _LAMBDA not in name.scopes:
        return text
    parameters = ", ".join(one for one in _once(name.parameters) if one != "void")
    return f"{text} lambda({parameters})".lstrip() if parameters else f"{text} lambda".lstrip()
