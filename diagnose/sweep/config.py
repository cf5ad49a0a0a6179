"""The configuration file (TOML): thresholds and known quirks, checked strictly; a mistake is named with its line.

[sweep]
fail_on = "warning"          # ok below this: unknown (default), warning, critical
timeout_s = 4.0              # for all checks together; they run side by side
retention_days = 14
skip = ["ib.flap"]

[check."disk.full"]
warning_percent = 85         # the settings of a check: rankscope sweep --explain disk.full
ignore = ["/scratch*"]       # instances that are known and accepted
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose.severity import CRITICAL, UNKNOWN, WARNING
from rankscope.diagnose.sweep.context import Setting
from rankscope.diagnose.sweep.registry import Check
from rankscope.probes.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_CAP = 1024 * 1024
FAIL_ON = (UNKNOWN, WARNING, CRITICAL)
_SWEEP_KEYS: Mapping[str, Setting] = {
    "fail_on": UNKNOWN,
    "timeout_s": 4.0,
    "retention_days": 14.0,
    "skip": (),
    "hook": "",
    "hook_timeout_s": 30.0,
}
_LARGEST = 1e15


class ConfigError(UsageError):
    """The configuration file has a mistake."""

    help = "`rankscope sweep --explain ID` lists the settings of a check."


@dataclass(frozen=True, slots=True)
class Config:
    """What the operator set; the defaults where nothing was."""

    fail_on: str = UNKNOWN
    timeout_s: float = 4.0
    retention_days: float = 14.0
    skip: tuple[str, ...] = ()
    hook: str = ""
    hook_timeout_s: float = 30.0
    overrides: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)

    def settings(self, check: Check) -> Mapping[str, Setting]:
        """The settings of a check: its defaults with what the file says."""
        return {**check.settings, **self.overrides.get(check.id, {})}

    def ignored(self, identifier: str) -> tuple[str, ...]:
        """Patterns of instances of a check that are known and accepted."""
        patterns = self.overrides.get(identifier, {}).get("ignore", ())
        return patterns if isinstance(patterns, tuple) else ()


def read_config(path: Path, checks: Sequence[Check]) -> Config:
    """Reads and checks a configuration file. Raises ConfigError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(CONFIG_CAP + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: line {data[: error.start].count(10) + 1}: not UTF-8") from error
    if len(data) > CONFIG_CAP:
        raise ConfigError(f"{path}: longer than {CONFIG_CAP} bytes")
    return parse_config(text, checks, str(path))


def parse_config(text: str, checks: Sequence[Check], name: str = "configuration") -> Config:
    """Checks a configuration. Raises ConfigError with the line of the first mistake."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from error

    def wrong(words: str, *keys: str) -> ConfigError:
        line = line_of(text, keys)
        return ConfigError(f"{name}: {f'line {line}: ' if line else ''}{words}")

    known = {check.id: check for check in checks}
    for table in tables:
        if table not in ("sweep", "check"):
            raise wrong(f'unknown table [{table}]; there are [sweep] and [check."ID"]', table)
    general: dict[str, Setting] = dict(_SWEEP_KEYS)
    given = tables.get("sweep", {})
    if not isinstance(given, dict):
        raise wrong("[sweep] must be a table", "sweep")
    for key, value in given.items():
        if key not in _SWEEP_KEYS:
            raise wrong(f"unknown setting {key}; there are {', '.join(_SWEEP_KEYS)}", "sweep", key)
        general[key] = _checked(value, _SWEEP_KEYS[key], lambda words, key=key: wrong(words, "sweep", key), key)
    if general["fail_on"] not in FAIL_ON:
        raise wrong(f"fail_on must be one of {', '.join(FAIL_ON)}", "sweep", "fail_on")
    for identifier in general["skip"] if isinstance(general["skip"], tuple) else ():
        if identifier not in known:
            raise wrong(f"unknown check {identifier!r}", "sweep", "skip")
    if not 0.1 <= float(str(general["timeout_s"])) <= 60:
        raise wrong("timeout_s must lie between 0.1 and 60", "sweep", "timeout_s")
    overrides: dict[str, Mapping[str, Setting]] = {}
    sections = tables.get("check", {})
    if not isinstance(sections, dict):
        raise wrong('[check."ID"] must be a table', "check")
    for identifier, section in sections.items():
        if identifier not in known:
            hint = ' (quote the id: [check."disk.full"])' if isinstance(section, dict) else ""
            raise wrong(f"unknown check {identifier!r}{hint}", "check", identifier)
        if not isinstance(section, dict):
            raise wrong(f"{identifier} must be a table", "check", identifier)
        allowed: dict[str, Setting] = {**known[identifier].settings, "ignore": ()}
        chosen: dict[str, Setting] = {}
        for key, value in section.items():
            if key not in allowed:
                raise wrong(f"{identifier} has no setting {key}; it has {', '.join(allowed)}", "check", identifier, key)
            chosen[key] = _checked(
                value, allowed[key], lambda words, i=identifier, k=key: wrong(words, "check", i, k), key
            )
        overrides[identifier] = chosen
    return Config(
        fail_on=str(general["fail_on"]),
        timeout_s=float(str(general["timeout_s"])),
        retention_days=float(str(general["retention_days"])),
        skip=general["skip"] if isinstance(general["skip"], tuple) else (),
        hook=str(general["hook"]),
        hook_timeout_s=float(str(general["hook_timeout_s"])),
        overrides=overrides,
    )


def _checked(value: object, default: Setting, wrong: object, key: str) -> Setting:
    """A value of the kind of its default. Raises what `wrong` makes."""
    assert callable(wrong)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise wrong(f"{key} must be true or false")
        return value
    if isinstance(default, (int, float)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong(f"{key} must be a number")
        if not 0 <= value <= _LARGEST:
            raise wrong(f"{key} must be a number from 0 on")
        return float(value)
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise wrong(f"{key} must be a list of strings")
        return tuple(value)
    if not isinstance(value, str):
        raise wrong(f"{key} must be a string")
    return value


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line (from 1) of the deepest part of a path of keys; 0 if it is not found. tomllib keeps no positions."""
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
    count = 0
    for one, other in zip(path, keys, strict=False):
        if one != other:
            break
        count += 1
    return count


def _header(line: str) -> tuple[str, ...]:
    try:
        node = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path = []
    while isinstance(node, dict) and node:
        key, node = next(iter(node.items()))
        path.append(key)
    return tuple(path)
