"""NVML functions that are called many times a second, with arguments prepared once.

pynvml's own functions look up their symbol and build every argument anew: several times the cost of
the call itself. In: pynvml, initialised. Out: callables that raise as pynvml's do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


def prepared(library: Any, name: str, *arguments: object) -> Callable[[], None]:
    """Prepare a call of function `name` with these ctypes arguments.

    Raises AttributeError where the library has none; the callable raises NVMLError as pynvml does.
    """
    function, failure = getattr(library.nvmlLib, name), library.NVMLError

    def call() -> None:
        code = function(*arguments)
        if code:
            raise failure(code)

    return call


def number(library: Any, name: str, kind: type[Any], *arguments: object) -> Callable[[], float] | None:
    """Prepare a function that reads one number, which NVML's function `name` writes as ctypes type `kind`.

    `arguments` come before the pointer to the number. None where this driver or GPU does not report it
    now: it is not tried again. The prepared function raises NVMLError.
    """
    found = kind()
    try:
        call = prepared(library, name, *arguments, ctypes.byref(found))
        call()
    except Exception:
        return None

    def ask() -> float:
        call()
        return float(found.value)

    return ask


def counter(library: Any, name: str, kind: type[Any], *arguments: object) -> Callable[[], int | None]:
    """Prepare a function that reads an integer; it returns None while there is no value.

    NVML's function `name` gets `arguments`, then a pointer to a ctypes `kind`. The prepared function
    raises NVMLError only where the GPU is lost.
    """
    try:
        function, found = getattr(library.nvmlLib, name), kind()
    except AttributeError:  # a driver too old to know it
        return lambda: None
    lost, failure = library.NVML_ERROR_GPU_IS_LOST, library.NVMLError
    arguments = (*arguments, ctypes.byref(found))

    def ask() -> int | None:
        code = function(*arguments)
        if code == lost:
            raise failure(code)
        return None if code else int(found.value)

    return ask
