"""The configuration file (TOML): thresholds and known exceptions, validated; errors name the line.

[sweep]
fail_on = "warning"          # ok below this: unknown (default), warning, critical
timeout_s = 4.0              # for all checks together, which run in parallel
confirm_s = 10.0             # a critical finding must still be so after this time
retention_days = 14
skip = ["ib.flap"]

[check."disk.full"]
warning_percent = 85         # the settings of a check: rankscope sweep --explain disk.full
ignore = ["/scratch*"]       # instances that are known and accepted
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar, cast

from rankscope.diagnose.severity import CRITICAL, UNKNOWN, WARNING
from rankscope.diagnose.sweep.context import Setting
from rankscope.diagnose.sweep.hook import GRACE_S
from rankscope.diagnose.sweep.registry import Check
from rankscope.probes.base.errors import UsageError
from rankscope.probes.base.folders import open_plain, others_can_write

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_CAP = 1024 * 1024
FAIL_ON = (UNKNOWN, WARNING, CRITICAL)
_LARGEST = 1e15
_Kind = TypeVar("_Kind", bound=Setting)


class ConfigError(UsageError):
    """The configuration file has a mistake."""

    help = "`rankscope sweep --explain ID` lists the settings of a check."


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's settings, with defaults for the rest."""

    fail_on: str = UNKNOWN
    timeout_s: float = 4.0
    confirm_s: float = 10.0
    retention_days: float = 14.0
    skip: tuple[str, ...] = ()
    hook: str = ""
    hook_timeout_s: float = 30.0
    overrides: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)

    @property
    def longest_s(self) -> float:
        """Longest duration of a sweep in seconds: two passes, the pause between them, and the hook."""
        return 2 * self.timeout_s + self.confirm_s + self.hook_timeout_s + GRACE_S

    def settings(self, check: Check) -> Mapping[str, Setting]:
        """Settings of a check by name: its defaults, overridden by the file."""
        return {**check.settings, **self.overrides.get(check.id, {})}

    def ignored(self, identifier: str) -> tuple[str, ...]:
        """Patterns of instances of the check `identifier` that the operator accepts as they are."""
        patterns = self.overrides.get(identifier, {}).get("ignore", ())
        return patterns if isinstance(patterns, tuple) else ()


def read_config(path: Path, checks: Sequence[Check]) -> Config:
    """Read and validate a configuration file that only root can write. Raises ConfigError."""
    try:
        with os.fdopen(open_plain(path), "rb") as stream:
            why = others_can_write(os.fstat(stream.fileno()))
            data = stream.read(CONFIG_CAP + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: line {data[: error.start].count(10) + 1}: not UTF-8") from error
    if why:  # the file can name a program that root runs
        raise ConfigError(f"{path}: {why}; chmod go-w, chown root")
    if len(data) > CONFIG_CAP:
        raise ConfigError(f"{path}: longer than {CONFIG_CAP} bytes")
    return parse_config(text, checks, str(path))


def parse_config(text: str, checks: Sequence[Check], name: str = "configuration") -> Config:
    """Validate a configuration's text. Raises ConfigError with the line of the first mistake."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from error
    file = _File(text, name)
    for table in tables:
        if table not in ("sweep", "check"):
            raise file.wrong(f'unknown table [{table}]; there are [sweep] and [check."ID"]', table)
    known = {check.id: check for check in checks}
    general = _general(file, tables.get("sweep", {}), known)
    return replace(general, overrides=_overrides(file, tables.get("check", {}), known))


@dataclass(frozen=True, slots=True)
class _File:
    """Text and name of a configuration, for error messages with a line number."""

    text: str
    name: str

    def wrong(self, words: str, *keys: str) -> ConfigError:
        """Make the error for a mistake, with the line of the value at the key path `keys`, if that is found."""
        line = line_of(self.text, keys)
        return ConfigError(f"{self.name}: {f'line {line}: ' if line else ''}{words}")

    def checked(self, value: object, default: _Kind, *keys: str) -> _Kind:
        """Convert a value to the type of its default: lists to tuples, integers to floats.

        Raises ConfigError if it has another type. `keys`: path to the value in the file.
        """
        mistake = _mistake(value, default)
        if mistake:
            raise self.wrong(f"{keys[-1]} must be {mistake}", *keys)
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        return cast(_Kind, value)


def _mistake(value: object, default: Setting) -> str:
    """Describe the type that is expected if a value does not fit its default; '' if it fits.

    A bool is a number in Python, but never a threshold.
    """
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, (int, float)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "a number"
        return "" if 0 <= value <= _LARGEST else "a number from 0 on"
    if isinstance(default, tuple):
        fine = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return "" if fine else "a list of strings"
    return "" if isinstance(value, str) else "a string"


def _general(file: _File, given: object, known: Mapping[str, Check]) -> Config:
    """Validate the table [sweep]. Raises ConfigError."""
    if not isinstance(given, dict):
        raise file.wrong("[sweep] must be a table", "sweep")
    names = [one.name for one in fields(Config) if one.name != "overrides"]
    for key in given:
        if key not in names:
            raise file.wrong(f"unknown setting {key}; there are {', '.join(names)}", "sweep", key)
    usual = Config()
    found = Config(**{key: file.checked(value, getattr(usual, key), "sweep", key) for key, value in given.items()})
    if found.fail_on not in FAIL_ON:
        raise file.wrong(f"fail_on must be one of {', '.join(FAIL_ON)}", "sweep", "fail_on")
    for identifier in found.skip:
        if identifier not in known:
            raise file.wrong(f"unknown check {identifier!r}", "sweep", "skip")
    if not 0.1 <= found.timeout_s <= 60:
        raise file.wrong("timeout_s must lie between 0.1 and 60", "sweep", "timeout_s")
    if found.confirm_s > 60:
        raise file.wrong("confirm_s must lie between 0 and 60", "sweep", "confirm_s")
    return found


def _overrides(file: _File, sections: object, known: Mapping[str, Check]) -> dict[str, Mapping[str, Setting]]:
    """Validate the tables [check."ID"]: settings by check. Raises ConfigError."""
    if not isinstance(sections, dict):
        raise file.wrong('[check."ID"] must be a table', "check")
    overrides: dict[str, Mapping[str, Setting]] = {}
    for identifier, section in sections.items():
        if identifier not in known:
            hint = ' (quote the id: [check."disk.full"])' if isinstance(section, dict) else ""
            raise file.wrong(f"unknown check {identifier!r}{hint}", "check", identifier)
        if not isinstance(section, dict):
            raise file.wrong(f"{identifier} must be a table", "check", identifier)
        allowed: dict[str, Setting] = {**known[identifier].settings, "ignore": ()}
        for key in section:
            if key not in allowed:
                words = f"{identifier} has no setting {key}; it has {', '.join(allowed)}"
                raise file.wrong(words, "check", identifier, key)
        overrides[identifier] = {
            key: file.checked(value, allowed[key], "check", identifier, key) for key, value in section.items()
        }
    return overrides


def line_of(text: str, keys: Sequence[str]) -> int:
    """Line number (from 1) of the longest matching prefix of a key path; 0 if absent.

    Needed because tomllib keeps no positions.
    """
    header: tuple[str, ...] = ()
    best, depth = 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            header = _header(line) or header
            shared = _common(header, keys)
            if shared in (len(header), len(keys)) and shared > depth:
                best, depth = number, shared
            continue
        match = re.match(r'\s*(?:"([^"]*)"|\'([^\']*)\'|([A-Za-z0-9_-]+))\s*[=.]', line)
        if match:
            path = (*header, match[1] or match[2] or match[3])
            shared = _common(path, keys)
            if shared == len(path) and shared > depth:
                best, depth = number, shared
    return best


def _common(path: Sequence[str], keys: Sequence[str]) -> int:
    """Length of the common beginning of two key paths."""
    count = 0
    for one, other in zip(path, keys, strict=False):
        if one != other:
            break
        count += 1
    return count


def _header(line: str) -> tuple[str, ...]:
    """Key path of a table's header line; () if it is invalid."""
    try:
        node = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path = []
    while isinstance(node, dict) and node:
        key, node = next(iter(node.items()))
        path.append(key)
    return tuple(path)
