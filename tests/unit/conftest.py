"""What tests of several rooms share: a real S3 server, and an empty store in a folder or on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from s3_server import INSTALLED, serving, uri

# How long one example takes says nothing on a machine that computes other things as well.
settings.register_profile("any machine", settings(), deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="module", autouse=True)
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """No power fails between a test and what it reads: that all is synced before it has its name is asked in test_ours_alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """`host:port` of a server for the session; each test takes a prefix of its own."""
    if not INSTALLED.exists():
        pytest.skip("scripts/setup --lab installs moto")
    with serving() as address:
        yield address


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty store."""
    if request.param == "folder":
        tmp_path.chmod(0o700)
        return (tmp_path / "store").as_uri()
    return uri(request.getfixturevalue("server"), tmp_path.name)
