"""Phrases that sentences of a verdict are made of: who, where in the code, what it costs."""

from __future__ import annotations

import re

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.text import rank_list, seconds, short

NAME, HOST = 60, 40  # characters shown of a name
WHOLE = budgets.NAME_MOST

# A mount as windows have it: '/data (ext4 254:1)'.
_MOUNT = re.compile(r"(?<![\w/])(?P<path>/\S*) \((?P<kind>[\w.-]+) (?P<device>\d+:\d+)\)")


def readable(text: str) -> str:
    """Rewrite mounts in a text: '/ (ext4 254:0)' becomes 'the file system on / (ext4, device 254:0)'."""
    return _MOUNT.sub(r"the file system on \g<path> (\g<kind>, device \g<device>)", text)


def comes_back(verdict: Verdict) -> str:
    """Share of the time that all waste takes together, in words: '24 % of the time'."""
    share = sum(max(each.lost_percent, 0.0) for each in verdict.suspects if each.waste)
    return f"{min(share, 100.0):.0f} % of the time"


def count_of(verdict: Verdict) -> str:
    """Number of ranks in words, '8 ranks'."""
    return f"{len(verdict.ranks)} ranks" if len(verdict.ranks) != 1 else "1 rank"


def hosts_of(verdict: Verdict) -> str:
    """Where the ranks are: ' on node-0', ' on 4 hosts'; '' where no host is known."""
    known = [host for host in verdict.hosts if host]
    return f" on {len(known)} hosts" if len(known) > 1 else f" on {short(known[0], HOST)}" if known else ""


def who_of(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    """Ranks and host of a suspect, 'rank 3? on node-0'; a guessed rank number gets '?'."""
    if suspect.scope == "all" and len(suspect.ranks) > 1:
        return "both ranks" if len(suspect.ranks) == 2 else f"all {len(suspect.ranks)} ranks"
    who = rank_list(suspect.ranks) if suspect.ranks else ""
    who += "?" if set(suspect.ranks) & set(guessed) else ""
    host = f"on {short(suspect.host, HOST)}" if suspect.host else ""
    return " ".join(part for part in (who, host) if part)


def few(names: str) -> str:
    """Shorten a list of more than 4 names to its first two: 'mlx5_0, mlx5_1 and 6 more'."""
    each = names.split(", ")
    return names if len(each) <= 4 else f"{', '.join(each[:2])} and {len(each) - 2} more"


def cost(suspect: Suspect) -> tuple[str, str]:
    """Cost of a suspect of a job that runs: ('0.1 s of each 0.3 s step', '33 %'); at most the step."""
    step_s = suspect.lost_seconds_per_step / max(suspect.lost_percent / 100, 1e-9)
    lost_s, percent = min(suspect.lost_seconds_per_step, step_s), min(suspect.lost_percent, 100.0)
    return f"{seconds(lost_s)} of each {seconds(step_s)} step", f"{percent:.0f} %"


def place_of(function: Function, most: int = NAME) -> str:
    """Format a function with its location, 'augment (train.py:88)'; `most`: characters shown of each name."""
    name = short(function.words, most)
    return f"{name} ({file_of(function, most)})" if function.file else name


def file_of(function: Function, most: int = NAME) -> str:
    """Format the location of a function, 'train.py:88'; `most`: characters shown of the file's name."""
    name = short(function.file.rpartition("/")[2], most)
    return f"{name}:{function.line}" if function.line > 0 else name
