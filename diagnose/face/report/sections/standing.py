"""Where the ranks of a hang are: the merged tree of their stacks as lines of the page.

A part common to many stacks is shown once, with its ranks; branches with fewer ranks come first
(like STAT).
"""

from __future__ import annotations

from rankscope.diagnose.face.report.content import Standing
from rankscope.diagnose.infer.verdict.stack_tree import NAME, StackNode
from rankscope.diagnose.text import clean, rank_list, short

LINES_MOST = 400  # a larger tree is unreadable
_CHAIN_BEGIN, _CHAIN_END = 2, 6  # frames of a chain that are shown: its first and last ones


def standing_of(tree: StackNode) -> tuple[Standing, ...]:
    """Convert the tree to lines, callers first, branches with fewer ranks first."""
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
    """Build the lines of a chain of frames with equal ranks; the last one says what they wait for.

    Of a long chain the middle is left out. `level`: number of branchings above it.
    """
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
