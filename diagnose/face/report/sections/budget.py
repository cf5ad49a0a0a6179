"""The page's budget of a step: bars of the job and of suspect ranks, and a table of its parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rankscope.diagnose.face.report.budget_words import item_text, line_of
from rankscope.diagnose.face.report.content import Spending, SpentBar, SpentOn
from rankscope.diagnose.infer.verdict.budget import IN_WORDS, Budget, Item, Kind, Part
from rankscope.diagnose.text import clean, seconds

BARS_MOST = 3  # ranks with a bar of their own


def spending_of(budget: Budget, suspects: Collection[int]) -> Spending:
    """Build the page's section on the budget of a step. `suspects`: numbers of suspect ranks, most damaging first."""
    who = f"all {budget.ranks} ranks" if budget.ranks > 1 else "the rank"
    bars = [_bar(who, budget.seconds, [(part.kind, part.seconds) for part in budget.parts])]
    if 0 < len(suspects) < budget.ranks:
        order = {part.kind: place for place, part in enumerate(budget.parts)}
        for one in [each for each in budget.by_rank if each.rank in suspects][:BARS_MOST]:
            bars.append(
                _bar(f"rank {one.rank}", one.seconds, sorted(one.parts, key=lambda part: order.get(part[0], 99)))
            )
    parts = tuple(_part(budget, part) for part in budget.parts)
    return Spending(budget.of_window, budget.seconds, budget.ranks, line_of(budget), parts, tuple(bars))


def _part(budget: Budget, part: Part) -> SpentOn:
    """Build the row of one part: share, largest items, and what loader workers do meanwhile."""

    def told(items: Iterable[Item]) -> tuple[str, ...]:
        """Format items with their seconds."""
        return tuple(clean(f"{item_text(item)}: {seconds(item.seconds)}", 300) for item in items)

    percent = 100 * budget.share(part.seconds)
    return SpentOn(part.kind.value, IN_WORDS[part.kind], part.seconds, percent, told(part.items), told(part.meanwhile))


def _bar(who: str, whole_s: float, parts: Iterable[tuple[Kind, float]]) -> SpentBar:
    """Build one bar; `parts`: kind and seconds of each piece, `whole_s`: seconds of the full bar."""
    pieces, begin = [], 0.0
    for kind, each_s in parts:
        width = 1000 * each_s / whole_s if whole_s > 0 else 0.0
        said = f"{IN_WORDS[kind]}: {seconds(each_s)} ({width / 10:.0f} %)"
        pieces.append((kind.value, said, round(begin, 2), round(width, 2)))
        begin += width
    return SpentBar(who, whole_s, tuple(pieces))
