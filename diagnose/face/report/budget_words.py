"""The budget of a step in words: one line, with the parts summed up in groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.diagnose.infer.verdict.budget import COMPUTING, IN_WORDS, Budget, Item, Kind
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.phrases import NAME, file_of
from rankscope.diagnose.text import clean, seconds, short

_SHOWN = 7  # groups in one line
_LEAST = 2  # percent of a group that is shown by itself
_DETAIL = 10  # percent from which its largest item is named
_WHAT = 60  # characters of an item's words
_KERNEL = 0.05  # of the whole: from here on the kernel's part of computing is told by itself
_PLAIN = (Kind.WAITING, Kind.EXCHANGE, Kind.COLLECTIVES)  # which call it is says nothing more


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of the budget shown as one: words, seconds, and the largest item."""

    words: str
    seconds: float
    largest: Item | None


def line_of(budget: Budget) -> str:
    """Format where the time goes, in one line: 'step 0.62 s: 55 % computing (train.py:18 forward 30 %), …'."""
    of = "window" if budget.of_window else "step"
    groups = groups_of(budget)
    percents = whole_percents([group.seconds for group in groups])
    said, left = list[str](), 0
    for group, percent in zip(groups, percents, strict=True):
        if percent >= _LEAST and len(said) < _SHOWN:
            said.append(_told(budget, group, percent))
        else:
            left += percent
    if left:
        said.append(f"{left} % other")
    stages = f"; {stages_of(budget)}" if budget.stages else ""
    return f"{of} {seconds(budget.seconds)}: {', '.join(said)}{stages}"


def stages_of(budget: Budget) -> str:
    """Format the stages of an iteration: 'stages of the ranks that ask servers: 62 % generate, …'."""
    percents = whole_percents([stage.seconds for stage in budget.stages])
    said = [
        f"{percent} % {short(stage.function.words, NAME) if stage.function is not None else 'other'}"
        for stage, percent in zip(budget.stages, percents, strict=True)
        if percent >= 1
    ]
    return f"stages of the ranks that ask servers: {', '.join(said[:_SHOWN])}"


def groups_of(budget: Budget) -> list[Group]:
    """Sum up the parts in groups, largest first, `not timed` last.

    All computing is one group; the kernel's part is one of its own if it takes much time.
    """
    kernel = [part for part in budget.parts if part.kind is Kind.SYSTEM and budget.share(part.seconds) >= _KERNEL]
    computing = [part for part in budget.parts if part.kind in COMPUTING and part not in kernel]
    found = [
        Group(IN_WORDS[part.kind], part.seconds, part.items[0] if part.items and part.kind not in _PLAIN else None)
        for part in budget.parts
        if part.kind not in COMPUTING and part.kind is not Kind.UNKNOWN
    ]
    found += [Group("in the kernel", part.seconds, _by_call(part.items)) for part in kernel]
    if computing:
        items = [item for part in computing for item in part.items]
        found.append(Group("computing", sum(part.seconds for part in computing), _by_function(items)))
    found.sort(key=lambda group: -group.seconds)
    unknown = [part for part in budget.parts if part.kind is Kind.UNKNOWN]
    return [*found, *(Group(IN_WORDS[part.kind], part.seconds, None) for part in unknown)]


def _by_call(items: Iterable[Item]) -> Item | None:
    """Return the kernel's operation with most time in these items, and the user's function that it was done for.

    For example 'new pages' in train.py:18 forward. None without items.
    """
    total: dict[tuple[str, Function | None], float] = {}
    for item in items:
        key = item.what.partition(",")[0], item.function
        total[key] = total.get(key, 0.0) + item.seconds
    best = max(total, key=lambda key: total[key], default=None)
    return None if best is None else Item(*best, total[best])


def _by_function(items: list[Item]) -> Item | None:
    """Return the user's function with most time in these items, and that time; None if no item has one."""
    total: dict[Function, float] = {}
    for item in items:
        if item.function is not None:
            total[item.function] = total.get(item.function, 0.0) + item.seconds
    best = max(total, key=lambda function: total[function], default=None)
    return None if best is None else Item("", best, total[best])


def _told(budget: Budget, group: Group, percent: int) -> str:
    """Format a group, with its largest item if both are large enough: '55 % computing (train.py:18 forward 30 %)'."""
    text = f"{percent} % {group.words}"
    if group.largest is None or percent < _DETAIL:
        return text
    share = min(round(100 * budget.share(group.largest.seconds)), percent)
    return f"{text} ({item_text(group.largest)} {share} %)" if share >= _LEAST else text


def item_text(item: Item, most: int = NAME) -> str:
    """Format an item: 'train.py:40 load: read /data', 'train.py:18 forward'. `most`: characters of a name."""
    where = ""
    if item.function is not None:
        name = short(item.function.words, most)
        where = f"{file_of(item.function, most)} {name}" if item.function.file else name
    what = clean(item.what, _WHAT)
    return f"{where}: {what}" if what and where else what or where


def whole_percents(values: list[float]) -> list[int]:
    """Percentages of the sum as whole numbers that add up to 100: the largest remainders are rounded up."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    exact = [100 * value / total for value in values]
    found = [int(each) for each in exact]
    for at in sorted(range(len(values)), key=lambda at: found[at] - exact[at])[: 100 - sum(found)]:
        found[at] += 1
    return found
