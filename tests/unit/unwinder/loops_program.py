"""Prints the bytecode of a function that has run often, and the first code unit of each of its lines. Runs on Python 3.8 and later.

JSON: of `work` and of `long_work` [bytecode as it lies in memory (hex), {line in the function: code unit}].
"""

import dis
import json


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __call__(self, number):
        self.number = number
        return 1


def work(most, call, held):
    done = 0
    for _ in range(3):
        while done < most:
            done += call(done)
            if done == 7:
                continue
            with held:
                call(1)
        try:
            call(2)
        except ValueError:
            continue
        for item in (1, 2):
            call(item)
    for item in range(4):
        call(item)
    call(5)


# Loops of which one jump backwards is not enough: its argument has more than eight bits.
LONG = """def long_work(most, call):
    while most:
        for _ in range(2):
            {calls}
        {calls}
        most -= 1
    call(5)
"""
names = {}
exec(LONG.format(calls="call(1); " * 80), names)
long_work = names["long_work"]

nothing = Nothing()
for _ in range(200):
    work(10, nothing, nothing)
    long_work(2, nothing)
told = []
for function in (work, long_work):
    code = function.__code__
    units = {}
    for at, line in dis.findlinestarts(code):
        if line is not None:
            units.setdefault(line - code.co_firstlineno, at // 2)
    told.append([getattr(code, "_co_code_adaptive", code.co_code).hex(), units])
print(json.dumps(told))
