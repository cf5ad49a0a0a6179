"""No pandas, whatever is installed: nothing here uses it. It needs nothing but what every Python has.

Where it is installed for somebody else, pyarrow loads it with the first array it makes, to ask whether it is a series: a third of a second
of each command and of each worker of an engine.
"""

from __future__ import annotations

import sys


class _NoPandas:
    """Finds none."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("rankscope does without pandas", name=name)


def spare_pandas() -> None:
    """In this process, which is ours alone: no worker that others use, too."""
    if _NoPandas not in sys.meta_path:
        sys.meta_path.insert(0, _NoPandas)
