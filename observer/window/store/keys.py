"""Names of objects: `job=…/window=<UTC>/shard=<2 hex>/<host>.parquet` or `hosts=<number>-<hash>.parquet`. Pure.

The latter contain several hosts.

Messages between hosts about a window lie next to it: `job=…/trigger=<UTC>.json`, `turn=<UTC>.json`,
`verdict=<UTC>.json`.

After the host's name comes a hash of it and of its machine id: two hosts called `localhost` do not
overwrite each other.

The shard is a hash of the host's name: a thousand hosts that write at the same time use 256
prefixes, each of which a store serves by itself.
"""

from __future__ import annotations

import calendar
import hashlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.staging import safe_name

_KEY = re.compile(r"(?:^|/)job=([^/]+)/window=(\d{8}T\d{6}Z)/shard=([0-9a-f]{2})/([^/]+)\.parquet$")
_MOMENT = re.compile(r"(?:^|/)job=[^/]+/window=(\d{8}T\d{6}Z)$")
_TOLD = re.compile(r"(?:^|/)job=[^/]+/(?:trigger|turn|verdict)=(\d{8}T\d{6}Z)\.json$")
_TIME = "%Y%m%dT%H%M%SZ"
_SEVERAL = re.compile(r"hosts=(\d{1,6})-")
_LONGEST = 48  # with its hash a name is no longer than a part of a path may be


@dataclass(frozen=True, slots=True)
class Key:
    """The parsed name of an object. `host` is '' where it contains several."""

    job: str
    start: int  # Unix time, seconds
    shard: str
    host: str
    hosts: int = 1


def key_of(manifest: Manifest) -> str:
    """Return a window's path below the store's: always the same for it, and different for all
    others.
    """
    return f"{moment_of(manifest)}/shard={_hash(manifest.host)[:2]}/{label_of(manifest.host, manifest.machine)}.parquet"


def moment_of(manifest: Manifest) -> str:
    """Return the folder of all hosts' windows of one job and time."""
    return moment("+".join(manifest.jobs), manifest.start)


def moment(job: str, start: float) -> str:
    """Return the folder of all windows of a job at this start time."""
    return f"job={label_of(job)}/window={time.strftime(_TIME, time.gmtime(start))}"


def message_key(what: str, job: str, start: float) -> str:
    """Return the path of a message about a job's window: `what` is trigger, turn or verdict."""
    return f"job={label_of(job)}/{what}={time.strftime(_TIME, time.gmtime(start))}.json"


def fits(path: str, manifest: Manifest) -> bool:
    """Tell whether host and time in the name of a single window's object match its manifest."""
    _, _, moment_and_host = moment_of(manifest).partition("/")
    of_host = f"/shard={_hash(manifest.host)[:2]}/{label_of(manifest.host, manifest.machine)}.parquet"
    return path.endswith(f"/{moment_and_host}{of_host}")


def start_of_message(path: str) -> int | None:
    """Return the start time (Unix) of the window that a message is about; None for other paths."""
    found = _TOLD.search(path)
    return None if found is None else _unix(found[1])


@lru_cache(maxsize=256)  # thousands of hosts, a few times
def _unix(text: str) -> int | None:
    """Parse a time in the form that names contain (UTC); None where it is invalid."""
    try:
        return calendar.timegm(time.strptime(text, _TIME))
    except ValueError:
        return None


def key_of_several(folder: str, members: Iterable[str]) -> str:
    """Return the path of an object with several windows: the same for the same members."""
    names = sorted(members)
    return f"{folder}/hosts={len(names)}-{_hash('/'.join(names))[:16]}.parquet"


def folder_of_moment(path: str) -> str:
    """Return the folder of a job's windows at one time, from the path of one of them; '' for other
    paths.
    """
    return "/".join(path.split("/")[:-2]) if _KEY.search(path) else ""


def start_of_moment(folder: str) -> int | None:
    """Return the start time (Unix) of the windows in a folder of a job; None for other folders."""
    found = _MOMENT.search(folder)
    return None if found is None else _unix(found[1])


def parse(path: str) -> Key | None:
    """Parse a path; None where it is no object of ours."""
    found = _KEY.search(path)
    if found is None:
        return None
    start = _unix(found[2])
    if start is None:
        return None
    several = _SEVERAL.match(found[4])
    return Key(found[1], start, found[3], "" if several else found[4], int(several[1]) if several else 1)


def label_of(text: str, beside: str = "") -> str:
    """Convert a text, such as a host name, to a part of a key.

    If that changes it, or with `beside`, a hash of everything is appended, so that two never share
    one.
    """
    safe = safe_name(text)[:_LONGEST]
    whole = f"{text}\0{beside}" if beside else text
    return safe if safe == whole and safe else f"{safe}~{_hash(whole)[:8]}"


def _hash(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
