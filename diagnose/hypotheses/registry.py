"""Register causes: what a verdict may name, who proposes it, what shows it, what it rests on, and the sentence people read.

One decorator on the function that proposes a cause is all that is needed:

    @cause("cpu", "irq", scope="rank", witness="interrupts on the rank's CPUs", rests_on=[Source.HOST],
           says="interrupts take its CPU")
    def judge(case: Case) -> Iterator[Hypothesis]: ...

A function that proposes several causes is decorated once for each. Any module below this package may register: `load` imports them all.
Who asks the function follows from its only parameter: a `Case` is one rank that is slower than its peers (rank/table.py), a `WholeJob`
the job, once (whole_job.py). Every other function is called by its own caller, as in hang/, where the order is part of the logic.
Functions are asked in the order of what they register (`Cause.order`), never in that of files or imports: it decides between charges
that are equally strong.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from rankscope.diagnose import hypotheses as package
from rankscope.diagnose.verdict.contract import COMPONENTS, SCOPES
from rankscope.observer.sources import ESSENTIAL, Source

Proposer = TypeVar("Proposer", bound=Callable[..., Any])
Key = tuple[str, str, str]  # component, cause, scope


@dataclass(frozen=True, slots=True)
class Cause:
    """One registered cause.

    `witness`: what shows it, in at most 36 characters. `says`: the sentence (report/sentence.py has its fields), '' where another scope
    of the same cause has it. `action`: what to do, where a hypothesis does not say it. `refines`: causes ("python/slow-function") that
    this one is the reason of: they are dropped where it explains half of what they take from the same rank. `told_by`: the file that
    proposes it, below this package.
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
        return self.component, self.cause, self.scope

    @property
    def name(self) -> str:
        """'cpu/irq'."""
        return f"{self.component}/{self.cause}"

    @property
    def order(self) -> tuple[int, str, int]:
        """By component as the contract lists them, then by name, then by scope from one rank to all."""
        return COMPONENTS.index(self.component), self.cause, SCOPES.index(self.scope)

    @property
    def told_by(self) -> str:
        """'rank/cpu.py'."""
        return self.proposed_by.__module__.removeprefix(f"{package.__name__}.").replace(".", "/") + ".py"


_REGISTERED = dict[Key, Cause]()


def cause(
    component: str, name: str, *, scope: str = "rank", witness: str, rests_on: Collection[Source] = (), says: str = "",
    action: str = "", refines: Collection[str] = (),
) -> Callable[[Proposer], Proposer]:  # fmt: skip
    """Register a cause that the decorated function proposes.

    `rests_on`: sources of a window without one of which it is not named, besides the essential ones.
    Raises ValueError for a component or scope that the contract lacks, and for a cause that is registered twice.
    """

    def register(function: Proposer) -> Proposer:
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


@cache
def load() -> tuple[Cause, ...]:
    """Import every module below this package; return all causes in their order."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return tuple(sorted(_REGISTERED.values(), key=lambda each: each.order))


@cache
def proposers(given: type) -> tuple[Callable[..., Any], ...]:
    """Return the registered functions whose only parameter is annotated with this type, in the order of the first cause of each."""
    functions = dict.fromkeys(each.proposed_by for each in load())
    return tuple(one for one in functions if _parameters(one) == [given.__name__])


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the types of the parameters."""
    annotations = (each.annotation for each in inspect.signature(function).parameters.values())
    return [str(getattr(each, "__name__", each)) for each in annotations]


def registered(component: str, name: str, scope: str) -> Cause | None:
    """The cause, among those of the modules that are imported so far."""
    return _REGISTERED.get((component, name, scope))
