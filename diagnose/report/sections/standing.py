"""Where the ranks of a hang are: the tree of their stacks as lines of a page.

What is the same on many stacks is told once, with the ranks that are there; laggards first (as STAT does).
"""

from __future__ import annotations

from rankscope.diagnose.report.content import Standing
from rankscope.diagnose.text import clean, rank_list, short
from rankscope.diagnose.verdict.stack_tree import NAME, StackNode

LINES_MOST = 400  # of the page: a tree of more has no shape that anybody sees
_CHAIN_BEGIN, _CHAIN_END = 2, 6  # frames of a chain that are told: where it starts, and where the ranks are


def standing_of(tree: StackNode) -> tuple[Standing, ...]:
    """The tree as lines, a caller before whom it calls, those who are few before those who are many."""
    told: list[Standing] = []
    if tree.missing:
        told.append(Standing(0, rank_list(tree.missing), "", "", "", "in none of these windows"))
    waiting = [(0, tree)] if tree.name else [(0, child) for child in reversed(tree.children)]
    if not tree.name and len(tree.children) == 1:
        waiting = [(0, tree.children[0])]
    while waiting and len(told) < LINES_MOST:
        level, top = waiting.pop()
        chain = top.chain
        told += _chain(chain, level)
        if ending := chain[-1].ending:
            told.append(Standing(level + 1, rank_list(ending), "", "", "", "no frame below this one"))
        waiting += [(level + 1, child) for child in reversed(chain[-1].children)]
    if waiting:
        ranks = tuple(sorted({rank for _, node in waiting for rank in node.ranks}))
        told.append(Standing(0, rank_list(ranks), "", "", "", f"in {len(waiting)} more places (--json has all)"))
    return tuple(told)


def _chain(chain: list[StackNode], level: int) -> list[Standing]:
    """The frames that the same ranks have, one below the other; what they wait for stands beside the last."""
    state = chain[-1].state
    frames = chain[:-1] if state else chain
    lines = [Standing(level, "", "", short(node.name, NAME), node.place, "") for node in frames]
    hidden = len(lines) - _CHAIN_BEGIN - _CHAIN_END
    if hidden > 1:
        lines[_CHAIN_BEGIN:-_CHAIN_END] = [Standing(level, "", "", f"… {hidden} frames …", "", "")]
    last = lines.pop() if lines else Standing(level, "", "", "", "", "")
    lines.append(Standing(level, "", "", last.name, last.place, clean(state)))
    first = lines[0]
    lines[0] = Standing(level, rank_list(chain[0].ranks), chain[0].but, first.name, first.place, first.waits_for)
    return lines
