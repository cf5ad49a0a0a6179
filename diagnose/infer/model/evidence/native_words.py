"""Names of native functions as people write them: older windows have C++ names as the linker does."""

from __future__ import annotations

from rankscope.unwinder.names.demangle import readable

# Operators that allocate and free; the short parser of names knows no operators.
_OPERATORS = {
    "_Znw": "operator new", "_Zna": "operator new[]", "_Zdl": "operator delete", "_Zda": "operator delete[]",
}  # fmt: skip


def native_words(name: str) -> str:
    """Return a native function's name without mangling, as 'operator delete' for '_ZdlPvm'."""
    if (operator := _OPERATORS.get(name[:4])) is not None:
        return operator
    told = readable(name)
    return "a C++ function" if told.startswith("_Z") else told
