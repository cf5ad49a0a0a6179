"""What the suite prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit import verdicts
from labkit.public.cases import PRICE_WITHIN, WANTED, Price, Result
from labkit.public.kinds import KINDS
from labkit.public.score import middle, prices


def case_line(result: Result) -> str:
    """One case, as it ends."""
    step = f"step {1e3 * result.step_s:.0f} ms, " if result.step_s else ""
    price = "" if result.told_percent is None else f"price {result.told_percent:.0f} %, "
    return f"{step}{price}{result.said}"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Per kind how many were right, and their price; then the totals with what is wanted."""
    known = prices(results)
    yield f"{'kind':<18}{'healthy':>9}{'at fault':>10}{'price':>8}{'told %':>12}{'by steps %':>12}  what it is a kind of"
    for kind in KINDS.values():
        mine = [one for one in results if one.case.kind == kind.name]
        if mine:
            healthy, fault = ([one for one in mine if one.case.fault == side] for side in (False, True))
            priced = known.get(kind.name, [])
            told, true = (_listed(each) for each in ([one.told for one in priced], [one.true for one in priced]))
            yield f"{kind.name:<18}{_right(healthy):>9}{_right(fault):>10}{_priced(priced):>8}{told:>12}{true:>12}  {kind.report}"
    yield ""
    healthy, fault = ([one for one in results if one.case.fault == side] for side in (False, True))
    yield f"at fault  {_right(fault)} right first (wanted: {100 * WANTED:.0f} %)"
    cases = _priced([price for priced in known.values() for price in priced])
    of_kinds = _priced([middle(priced) for priced in known.values()])
    yield f"price     {cases} within {PRICE_WITHIN:.0f} points, medians of kinds {of_kinds} (wanted: all of these)"
    yield f"healthy   {_right(healthy)} (wanted: all)"


def good_enough(results: Sequence[Result]) -> bool:
    """Whether all that is wanted is met."""
    healthy, fault = ([one for one in results if one.case.fault == side] for side in (False, True))
    right = sum(one.outcome == verdicts.FIRST for one in fault)
    return (
        right >= WANTED * len(fault)
        and all(one.outcome == verdicts.FIRST for one in healthy)
        and all(middle(priced).right for priced in prices(results).values())
    )


def _right(results: Sequence[Result]) -> str:
    return f"{sum(one.outcome == verdicts.FIRST for one in results)}/{len(results)}" if results else "-"


def _priced(known: Sequence[Price]) -> str:
    return f"{sum(price.right for price in known)}/{len(known)}" if known else "-"


def _listed(percents: Sequence[float]) -> str:
    return " ".join(f"{each:.0f}" for each in percents) or "-"
