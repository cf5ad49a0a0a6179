"""Open a store by its URI (`s3://bucket/prefix`, `gs://…`, `file:///mnt/…`): any of pyarrow's file systems.

 s3://bucket/prefix?region=…&endpoint_override=host:port&scheme=http     or from AWS_REGION, AWS_ENDPOINT_URL, ~/.aws

Credentials come from where the store's own tools take them (environment, files, the machine's
role). Printed texts never contain any: neither a URI nor a server's answer is shown unchanged.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from rankscope.probes.base.errors import EXIT_MISSING, EXIT_NOT_PERMITTED, RankscopeError, UsageError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# a live host answers in milliseconds; an object of a window is 100 KB
_CONNECT_S, _ANSWER_S = 5.0, 20.0
_S3_SETTINGS = ("region", "endpoint_override", "scheme")
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_FORBIDDEN = re.compile(
    r"access.?denied|forbidden|\b40[13]\b|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|permission",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist|\b404\b|not found|does not exist", re.IGNORECASE
)
_SILENT = re.compile(
    r"NETWORK_CONNECTION|curlCode|could ?n.t (connect|resolve)|connection|timed? ?out|resolve", re.IGNORECASE
)


class StoreFailed(RankscopeError):
    """A store cannot be reached, or did not do what was requested."""

    help = "Check its address, the network and the credentials."
    exit_code = EXIT_MISSING


class StoreForbids(StoreFailed):
    """A store denies access."""

    help = "Give the host's role, or the credentials in its environment, the right to list, read and write there."
    exit_code = EXIT_NOT_PERMITTED


class InTheWay(StoreFailed):
    """In a folder, something else exists at the path of an object or on the way there; other
    objects are unaffected.
    """


@dataclass(frozen=True, slots=True)
class Store:
    """An opened store: a file system and a path in it. `shown`: printable name; `local`: its files
    are this host's.
    """

    uri: str = field(repr=False)
    filesystem: Any = field(repr=False)
    path: str = field(repr=False)
    shown: str
    local: bool

    def at(self, path: str) -> str:
        """Return a path of the file system in printable form."""
        return self.shown + path.removeprefix(self.path)


def is_uri(text: str) -> bool:
    """Tell whether a text names a store rather than a folder."""
    return _URI.match(text) is not None


def shown_of(uri: str) -> str:
    """Return a URI without user, password and settings. UsageError where it is invalid."""
    try:
        parts = urlsplit(uri)
        address = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise UsageError("an address of a store that cannot be read") from None
    return f"{parts.scheme}://{parts.hostname or ''}{address}{parts.path}".rstrip("/")


@lru_cache(maxsize=64)
def open_store(uri: str) -> Store:
    """Open the store of a URI. UsageError where it is invalid, StoreFailed where it does not
    answer.
    """
    shown = shown_of(uri)
    with failures(shown, uri):
        try:
            filesystem, path = _s3(uri) if uri.lower().startswith("s3://") else fs.FileSystem.from_uri(uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise UsageError(f"{shown} names no store: {_without_secrets(str(error), uri)}") from None
    return Store(uri, filesystem, path.rstrip("/"), shown, isinstance(filesystem, fs.LocalFileSystem))


def _s3(uri: str) -> tuple[Any, str]:
    """Open the S3 of a URI; return its file system, and the path 'bucket/prefix'. Raises ValueError for an invalid one.

    Settings come from the URI, else from the environment.
    """
    parts = urlsplit(uri)
    settings = dict(parse_qsl(parts.query))
    unknown = sorted(settings.keys() - set(_S3_SETTINGS))
    if unknown or not parts.hostname:
        raise ValueError(f"unknown setting {unknown[0]}" if unknown else "no bucket")
    address = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if address and "endpoint_override" not in settings:
        settings["endpoint_override"] = address.partition("://")[2] or address
        settings.setdefault("scheme", address.partition("://")[0] if "://" in address else "https")
    bucket = parts.netloc.rpartition("@")[2]
    region = settings.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and "endpoint_override" not in settings:
        region = fs.resolve_s3_region(bucket)
    filesystem = fs.S3FileSystem(
        access_key=unquote(parts.username) if parts.username else None,
        secret_key=unquote(parts.password) if parts.password else None,
        region=region or "us-east-1",
        scheme=settings.get("scheme", "https"),
        endpoint_override=settings.get("endpoint_override"),
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        background_writes=False,  # a failing upload reports it where it is made
        # the spool tries again, with jitter
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
    )
    return filesystem, bucket + unquote(parts.path)


@contextmanager
def failures(shown: str, uri: str = "") -> Iterator[None]:
    """Convert errors inside to one line without secrets. FileNotFoundError of a single object
    passes through.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        text = str(error)
        if isinstance(error, (NotADirectoryError, IsADirectoryError)) or error.errno == errno.ELOOP:
            raise InTheWay(f"{shown} failed: {_without_secrets(error.strerror or text, uri)}") from None
        if isinstance(error, PermissionError) or _FORBIDDEN.search(text):
            raise StoreForbids(f"{shown} refuses: not permitted") from None
        if _ABSENT.search(text):
            raise StoreFailed(f"{shown} is not there") from None
        if _SILENT.search(text):
            raise StoreFailed(f"{shown} cannot be reached") from None
        raise StoreFailed(f"{shown} failed: {_without_secrets(error.strerror or text, uri)}") from None


def _without_secrets(text: str, uri: str) -> str:
    """Return the first line of a foreign text, without our credentials."""
    parts = urlsplit(uri)
    hidden = [parts.username, parts.password, parts.query, *(os.environ.get(name) for name in _SECRETS)]
    line = (text.splitlines() or [""])[0]
    for secret in hidden:
        if secret:
            for form in (secret, unquote(secret)):
                line = line.replace(form, "…")
    return line[:160]
