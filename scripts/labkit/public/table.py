"""What the suite prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit import verdicts
from labkit.public.cases import WANTED, Result
from labkit.public.kinds import KINDS


def case_line(result: Result) -> str:
    """One case, as it ends."""
    step = f"step {1e3 * result.step_s:.0f} ms, " if result.step_s else ""
    price = ""
    if result.true_percent is not None:
        told = f"{result.told_percent:.0f}" if result.told_percent is not None else "-"
        price = f"price {told} % (by its own steps {result.true_percent:.0f} %), "
    return f"{step}{price}{result.said}"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Per kind how many were right, and their price; then the totals with what is wanted."""
    yield f"{'kind':<18}{'healthy':>9}{'at fault':>10}{'price':>8}  what it is a kind of"
    for kind in KINDS.values():
        mine = [one for one in results if one.case.kind == kind.name]
        if mine:
            healthy, fault = ([one for one in mine if one.case.fault == side] for side in (False, True))
            yield f"{kind.name:<18}{_right(healthy):>9}{_right(fault):>10}{_priced(fault):>8}  {kind.report}"
    yield ""
    healthy, fault = ([one for one in results if one.case.fault == side] for side in (False, True))
    yield f"at fault  {_right(fault)} right first (wanted: {100 * WANTED:.0f} %)"
    yield f"price     {_priced(fault)} within 5 points (wanted: all that are right)"
    yield f"healthy   {_right(healthy)} (wanted: all)"


def good_enough(results: Sequence[Result]) -> bool:
    """Whether all that is wanted is met."""
    healthy, fault = ([one for one in results if one.case.fault == side] for side in (False, True))
    right = sum(one.outcome == verdicts.FIRST for one in fault)
    return (
        right >= WANTED * len(fault)
        and all(one.outcome == verdicts.FIRST for one in healthy)
        and not [one for one in fault if one.price_right is False]
    )


def _right(results: Sequence[Result]) -> str:
    return f"{sum(one.outcome == verdicts.FIRST for one in results)}/{len(results)}" if results else "-"


def _priced(results: Sequence[Result]) -> str:
    known = [one.price_right for one in results if one.price_right is not None]
    return f"{sum(known)}/{len(known)}" if known else "-"
