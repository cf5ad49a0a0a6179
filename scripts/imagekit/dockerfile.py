"""Read a Dockerfile: its stages, with their steps. The instructions that ours use; any other is an error. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_NAME = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_KINDS = ("RUN", "COPY", "LABEL", "ENV", "ENTRYPOINT", "CMD", "WORKDIR")


class DockerfileError(ValueError):
    """What a Dockerfile says that is not understood here."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, its names replaced but for those of RUN, which the shell replaces: `args` are their values.

    `words`: a command line for RUN; sources and target for COPY, with the stage it is taken from first ('' for the folder);
    name and value for LABEL and ENV; a command for ENTRYPOINT and CMD.
    """

    kind: str
    words: tuple[str, ...]
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """`base`: the image or the earlier stage that it begins with. `name`: '' for one without."""

    base: str
    name: str
    steps: tuple[Step, ...]


def stages(text: str, given: Mapping[str, str]) -> list[Stage]:
    """Return all stages, the last one is the image. `given`: values for ARG. Raises DockerfileError."""
    outer: dict[str, str] = {}  # arguments before the first FROM, which are for FROM alone
    found: list[tuple[str, str, list[Step]]] = []
    known = outer
    for kind, rest in _instructions(text):
        if kind == "ARG":
            name, equals, usual = rest.partition("=")
            if not re.fullmatch(r"\w+", name):
                raise DockerfileError(f"ARG {rest}")
            known[name] = given.get(name, usual if equals else outer.get(name, ""))
        elif kind == "FROM":
            match = re.fullmatch(r"(\S+)(?:\s+AS\s+(\w+))?", replaced(rest, outer), re.IGNORECASE)
            if match is None:
                raise DockerfileError(f"FROM {rest}")
            found.append((match[1], match[2] or "", []))
            known = {}
        elif kind not in _KINDS:
            raise DockerfileError(f"{kind}: this instruction is not known here")
        elif not found:
            raise DockerfileError(f"{kind} before FROM")
        else:
            found[-1][2].append(_step(kind, rest, {**outer, **known}, dict(known)))
    if not found:
        raise DockerfileError("there is no FROM")
    return [Stage(base, name, tuple(steps)) for base, name, steps in found]


def replaced(text: str, args: Mapping[str, str]) -> str:
    """Replace $NAME and ${NAME}. Raises DockerfileError for an unknown name."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in args:
            raise DockerfileError(f"${name} is no ARG here")
        return args[name]

    return _NAME.sub(value, text)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and rest of each instruction: comments left out, lines that go on joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(line.rstrip() for line in lines))
    for line in joined.splitlines():
        kind, _, rest = line.strip().partition(" ")
        yield kind.upper(), rest.strip()


def _step(kind: str, rest: str, args: Mapping[str, str], of_stage: Mapping[str, str]) -> Step:
    if kind == "RUN":
        if rest.startswith(("--", "[")):
            raise DockerfileError(f"RUN {rest}: only a command line is known here")
        return Step(kind, (rest,), of_stage)
    if kind in ("ENTRYPOINT", "CMD"):
        try:
            words = json.loads(rest)
        except ValueError:
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DockerfileError(f"{kind} {rest}: a list of words is wanted")
        return Step(kind, tuple(words))
    if kind == "COPY":
        words = [replaced(word, args) for word in shlex.split(rest)]
        source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        if len(words) < 2 or any(word.startswith("--") for word in words):
            raise DockerfileError(f"COPY {rest}")
        return Step(kind, (source, *words))
    if kind == "WORKDIR":
        return Step(kind, (replaced(rest, args),))
    name, equals, value = rest.partition("=")
    if not equals:
        raise DockerfileError(f"{kind} {rest}: NAME=VALUE is wanted")
    return Step(kind, (name, replaced("".join(shlex.split(value)), args)))
