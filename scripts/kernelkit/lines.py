"""Results on the serial console: one line of JSON for each check, among whatever else is printed there. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

MARK = "rankscope-check: "
_MOST_WORDS = 600  # characters of one field
_MOST_LINE = 16 << 10  # bytes
_MOST_PLAIN = 20  # other lines that are remembered
_MOST_TRACE = 60  # lines of the first report of a CPU that does not answer
_STUCK = re.compile(r"soft lockup - CPU#\d+ stuck for (\d+)s")
_STUCK_S = 100  # seconds after which such a CPU does not come back; on a busy host half a minute was seen


@dataclass(frozen=True, slots=True)
class Check:
    """What was found in the guest by one check."""

    name: str
    good: bool
    words: str
    seconds: float = 0.0


def encode(check: Check) -> str:
    """Write a check as one line of ASCII without its end."""
    return MARK + json.dumps({**asdict(check), "words": check.words[:_MOST_WORDS]})


def plain(text: str) -> str:
    """Replace what would steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text).strip()


def decode(line: str) -> Check | None:
    """Parse a line of the console; None where it is not a whole check. The guest is not trusted to write only those."""
    _, mark, rest = line.partition(MARK)
    if not mark:
        return None
    try:
        said = json.loads(rest)
        name, good, words, seconds = said["name"], said["good"], said["words"], said["seconds"]
    except (ValueError, KeyError, TypeError):
        return None
    right = (
        isinstance(name, str)
        and isinstance(good, bool)
        and isinstance(words, str)
        and isinstance(seconds, (int, float))
    )
    return Check(plain(name)[:60], good, plain(words)[:_MOST_WORDS], float(seconds)) if right else None


class Console:
    """Collect checks from the bytes of a serial console. Lines are cut at 16 KiB; of other lines the last ones are remembered.

    `trace`: of the kernel's first report of a CPU that does not answer; `stuck`: one has not for long.
    """

    def __init__(self) -> None:
        self.plain: list[str] = []
        self.trace: list[str] = []
        self.stuck = False
        self._rest = b""

    def feed(self, content: bytes) -> list[Check]:
        """Take what was printed; the checks that are whole by now."""
        *lines, self._rest = (self._rest + content).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_MOST_LINE:]
        found = []
        for line in lines:
            text = line[:_MOST_LINE].decode("utf-8", "replace")
            if check := decode(text):
                found.append(check)
            elif words := plain(text):
                self.plain = [*self.plain, words[:200]][-_MOST_PLAIN:]
                silent = _STUCK.search(words)
                self.stuck = self.stuck or (silent is not None and int(silent[1]) >= _STUCK_S)
                if (self.trace or silent) and len(self.trace) < _MOST_TRACE:
                    self.trace.append(words[:200])
        return found
