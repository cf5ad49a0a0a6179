"""Prints what an interpreter itself says about the lines of its standard library. Runs on Python 3.8 and later.

One JSON list per code object: [line table (hex), first line, [[code unit, line or null], ...]].
Arguments: take every Nth file; at most this many units per code object.
"""

import dis
import json
import os
import pathlib
import random
import sys
import types


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def truth(code):
    units = len(code.co_code) // 2
    lines = [code.co_firstlineno] * units
    if hasattr(code, "co_lines"):
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                lines[unit] = line
    else:
        for start, line in dis.findlinestarts(code):
            lines[start // 2 :] = [line] * (units - start // 2)
    return lines


def main():
    step, most = int(sys.argv[1]), int(sys.argv[2])
    chosen = random.Random(23)
    files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    for path in files[::step]:
        module = compile(path.read_bytes(), str(path), "exec")
        for code in code_objects(module):
            lines = truth(code)
            table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
            units = sorted(chosen.sample(range(len(lines)), min(most, len(lines))))
            print(json.dumps([table.hex(), code.co_firstlineno, [[unit, lines[unit]] for unit in units]]))


if __name__ == "__main__":
    main()
