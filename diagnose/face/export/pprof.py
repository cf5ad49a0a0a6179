"""pprof (github.com/google/pprof, proto/profile.proto): gzipped protobuf for `go tool pprof`, Pyroscope and others.

Every sample has rank, host, role and kind as labels: `pprof -tagfocus rank=3`, `-tagroot rank`. The message is small
and stable, so it is encoded here without a dependency.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable

from rankscope.diagnose.face.export.stacks import samples_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.observer.window.stacks import StackFrame

# Field numbers in profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _TEXT, _TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _DEFAULT = (
    1,
    2,
    4,
    5,
    6,
    9,
    10,
    11,
    12,
    14,
)
_LABELS = ("rank", "host", "role", "kind")


def pprof(fleet: Fleet) -> bytes:
    """Export executions and nanoseconds of every stack of every rank."""
    texts: dict[str, int] = {"": 0}

    def text(said: str) -> int:
        """Return the number of a string in the profile's table of strings; add it if it is new."""
        return texts.setdefault(said, len(texts))

    types = [
        _message(_number(1, text(kind)), _number(2, text(unit)))
        for kind, unit in (("executions", "count"), ("time", "nanoseconds"))
    ]
    functions: dict[StackFrame, int] = {}
    samples = []
    for sample in samples_of(fleet):
        leaf_first = [functions.setdefault(frame, len(functions) + 1) for frame in reversed(sample.frames)]
        values = (max(sample.count, 0), round(sample.seconds * 1e9))
        labels = [
            _field(3, _message(_number(1, text(name)), _number(2, text(str(getattr(sample, name)))))) for name in _LABELS
        ]  # fmt: skip
        samples.append(_message(_packed(1, leaf_first), _packed(2, values), *labels))
    parts = [_field(_SAMPLE_TYPE, each) for each in types] + [_field(_SAMPLE, each) for each in samples]
    for frame, number in functions.items():
        line = _message(_number(1, number), _number(2, max(frame.line, 0)))
        parts.append(_field(_LOCATION, _message(_number(1, number), _field(4, line))))
        parts.append(_field(_FUNCTION, _message(
            _number(1, number), _number(2, text(frame.name)), _number(3, text(frame.name)), _number(4, text(frame.file)),
            _number(5, max(frame.line, 0)),
        )))  # fmt: skip
    parts.append(_field(_PERIOD_TYPE, types[1]))
    parts.append(_number(_PERIOD, round(fleet.sampling_s * 1e9)))
    parts.append(_number(_DEFAULT, text("time")))
    if math.isfinite(fleet.start):
        parts.append(_number(_TIME, max(round(fleet.start * 1e9), 0)))
    parts.append(_number(_DURATION, round(fleet.seconds * 1e9)))
    parts += [_field(_TEXT, said.encode("utf-8")) for said in texts]
    return gzip.compress(b"".join(parts), mtime=0)


def _message(*fields: bytes) -> bytes:
    """Encode a protobuf message of encoded fields."""
    return b"".join(fields)


def _varint(value: int) -> bytes:
    """Encode a number (0 or above) as a protobuf varint."""
    said = bytearray()
    while value > 0x7F:
        said.append(value & 0x7F | 0x80)
        value >>= 7
    said.append(value)
    return bytes(said)


def _number(field: int, value: int) -> bytes:
    """Encode a protobuf field with a number."""
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    """Encode a protobuf field with bytes: a string or a message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    """Encode a protobuf field with several numbers, packed."""
    return _field(field, b"".join(map(_varint, values)))
