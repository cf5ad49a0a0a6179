"""Register causes: what a verdict may name, its proposer, its witness, its sources, its sentence.

One decorator on the function that proposes a cause is all that is needed:

    @cause("cpu", "irq", scope="rank", witness="interrupts on the rank's CPUs", rests_on=[Source.HOST],
           says="interrupts take its CPU")
    def judge(case: Case) -> Iterator[Hypothesis]: ...

Decorate a function that proposes several causes once for each. Any module below this package may
register; `load` imports them all. The parameters of the function decide when it is called: a `Case`
is one rank that is slower than its peers (rank/table.py), a `WholeJob` is the job, once, and with
what is `Known` again beside the rows of others (whole_job.py); a `Spending` is what the job spends
its time on, for waste (waste/spending.py). All other functions are called by name, as in hang/,
where the order is part of the logic. `asked` registers a function of the whole job that calls such
functions, or proposes what another one registered. Functions of a `Case` run in the order of what they register
(`Cause.order`), not of files or imports, because it decides between equally strong hypotheses.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from rankscope.diagnose.infer import causes as package
from rankscope.diagnose.infer.verdict.contract import COMPONENTS, SCOPES
from rankscope.observer.sources import ESSENTIAL, Source

Proposer = TypeVar("Proposer", bound=Callable[..., Any])
Key = tuple[str, str, str]  # component, cause, scope


@dataclass(frozen=True, slots=True)
class Cause:
    """One registered cause.

    `witness`: what shows it, in at most 36 characters.
    `rests_on`: sources of a window without one of which it is not reported.
    `says`: the sentence for readers (fields: verdict/sentence.py); '' where another scope has it.
    `action`: what to do, where a hypothesis has no action of its own.
    `refines`: causes ("python/slow-function") that this one explains; they are dropped where it
        explains half of what they take from the same rank.
    `proposed_by`: the decorated function; `told_by`: its file, relative to this package.
    """

    component: str
    cause: str
    scope: str
    witness: str
    rests_on: frozenset[Source]
    says: str
    action: str
    refines: frozenset[str]
    proposed_by: Callable[..., Any]

    @property
    def key(self) -> Key:
        """Component, cause and scope, by which it is registered."""
        return self.component, self.cause, self.scope

    @property
    def name(self) -> str:
        """Component and cause, such as 'cpu/irq'."""
        return f"{self.component}/{self.cause}"

    @property
    def order(self) -> tuple[int, str, int]:
        """Sort key: component as in the contract, then cause name, then scope from one rank to all."""
        return COMPONENTS.index(self.component), self.cause, SCOPES.index(self.scope)

    @property
    def told_by(self) -> str:
        """The file of the proposing function, relative to this package, such as 'rank/cpu.py'."""
        return self.proposed_by.__module__.removeprefix(f"{package.__name__}.").replace(".", "/") + ".py"


_REGISTERED = dict[Key, Cause]()
_ASKED: list[Callable[..., Any]] = []


def cause(
    component: str, name: str, *, scope: str = "rank", witness: str, rests_on: Collection[Source] = (), says: str = "",
    action: str = "", refines: Collection[str] = (),
) -> Callable[[Proposer], Proposer]:  # fmt: skip
    """Register a cause that the decorated function proposes; the function itself is unchanged.

    `rests_on`: sources of a window, besides the essential ones, without one of which the cause is
        not reported.
    Raises ValueError for a component or scope that the contract lacks, and for a cause that is
    registered twice.
    """

    def register(function: Proposer) -> Proposer:
        """Add the decorated function's cause to the registry; return the function unchanged."""
        found = Cause(
            component, name, scope, witness, frozenset({*ESSENTIAL, *rests_on}), says, action, frozenset(refines), function,
        )  # fmt: skip
        if component not in COMPONENTS or scope not in SCOPES:
            raise ValueError(f"{found.name} ({scope}): the contract has no such component or scope")
        if found.key in _REGISTERED:
            raise ValueError(f"{found.name} ({scope}) is registered in {_REGISTERED[found.key].told_by} already")
        _REGISTERED[found.key] = found
        return function

    return register


def asked(function: Proposer) -> Proposer:
    """Register a function that proposes causes for which other functions are registered."""
    _ASKED.append(function)
    return function


@cache
def load() -> tuple[Cause, ...]:
    """Import every module below this package; return all causes in their order."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return tuple(sorted(_REGISTERED.values(), key=lambda each: each.order))


@cache
def proposers(*given: type) -> tuple[Callable[..., Any], ...]:
    """Return the registered functions whose parameters have exactly these types, in the order of causes."""
    functions = dict.fromkeys([*(each.proposed_by for each in load()), *_ASKED])
    return tuple(one for one in functions if _parameters(one) == [each.__name__ for each in given])


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameter types."""
    annotations = (each.annotation for each in inspect.signature(function).parameters.values())
    return [str(getattr(each, "__name__", each)) for each in annotations]


def registered(component: str, name: str, scope: str) -> Cause | None:
    """Return a cause that is registered already, or None; modules that are not yet imported are not searched."""
    return _REGISTERED.get((component, name, scope))


def sentence(component: str, name: str, scope: str) -> str:
    """Return the sentence that explains a cause in this scope, else in the narrowest scope that has one.

    Raises KeyError where no scope has a sentence.
    """
    rows = [row for row in load() if (row.component, row.cause) == (component, name) and row.says]
    if not rows:
        raise KeyError(f"{component}/{name}: no sentence is registered")
    return next((row.says for row in rows if row.scope == scope), rows[0].says)
