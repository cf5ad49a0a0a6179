"""Names of objects: `job=…/window=<UTC>/shard=<2 hex>/<host>.parquet`; of several hosts in one: `hosts=<number>-<hash>.parquet`. Pure.

What hosts tell each other about a window lies beside it: `job=…/trigger=<UTC>.json`, `turn=<UTC>.json`, `verdict=<UTC>.json`.

Behind the host's name is a hash of it and of what names its machine: two hosts that are called `localhost` do not write over one another.

The shard is of the host's name: a thousand hosts that write at one moment write under 256 prefixes, each of which a store serves by itself.
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
    """What the name of an object says. `host` is '' where it holds several."""

    job: str
    start: int  # Unix time, seconds
    shard: str
    host: str
    hosts: int = 1


def key_of(manifest: Manifest) -> str:
    """Where a window lies below the store's path: the same however often it is sent, and nobody else's: hosts may have one name."""
    return f"{moment_of(manifest)}/shard={_hash(manifest.host)[:2]}/{label_of(manifest.host, manifest.machine)}.parquet"


def moment_of(manifest: Manifest) -> str:
    """The folder of all hosts of one job and window."""
    return moment("+".join(manifest.jobs), manifest.start)


def moment(job: str, start: float) -> str:
    """The same of a job and when its window began."""
    return f"job={label_of(job)}/window={time.strftime(_TIME, time.gmtime(start))}"


def told_key(what: str, job: str, start: float) -> str:
    """Where hosts tell each other something about the window of a job: `what` is trigger, turn or verdict."""
    return f"job={label_of(job)}/{what}={time.strftime(_TIME, time.gmtime(start))}.json"


def fits(path: str, manifest: Manifest) -> bool:
    """Whether what the name of one window's object says of its host and moment is what the window says."""
    _, _, moment_and_host = moment_of(manifest).partition("/")
    of_host = f"/shard={_hash(manifest.host)[:2]}/{label_of(manifest.host, manifest.machine)}.parquet"
    return path.endswith(f"/{moment_and_host}{of_host}")


def told_about(path: str) -> int | None:
    """When the window began that something told is about, Unix time; None where the path is no such thing's."""
    found = _TOLD.search(path)
    return None if found is None else _unix(found[1])


@lru_cache(maxsize=256)  # thousands of hosts, a few moments
def _unix(text: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(text, _TIME))
    except ValueError:
        return None


def key_of_several(folder: str, members: Iterable[str]) -> str:
    """Where several windows lie together: the same for the same members."""
    names = sorted(members)
    return f"{folder}/hosts={len(names)}-{_hash('/'.join(names))[:16]}.parquet"


def folder_of_moment(path: str) -> str:
    """Where all windows of a job's moment lie, by the path of one of them; '' where it is none."""
    return "/".join(path.split("/")[:-2]) if _KEY.search(path) else ""


def start_of_moment(folder: str) -> int | None:
    """When the windows in a folder of a job's moment began, Unix time; None where it is no such folder."""
    found = _MOMENT.search(folder)
    return None if found is None else _unix(found[1])


def parse(path: str) -> Key | None:
    """What a path says; None where it is no object of ours."""
    found = _KEY.search(path)
    if found is None:
        return None
    start = _unix(found[2])
    if start is None:
        return None
    several = _SEVERAL.match(found[4])
    return Key(found[1], start, found[3], "" if several else found[4], int(several[1]) if several else 1)


def label_of(text: str, beside: str = "") -> str:
    """A text, the name of a host, say, as a part of a key. What is not the text itself, or has something `beside`, ends with a hash of all
    of it, so that two never share one."""
    safe = safe_name(text)[:_LONGEST]
    whole = f"{text}\0{beside}" if beside else text
    return safe if safe == whole and safe else f"{safe}~{_hash(whole)[:8]}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
