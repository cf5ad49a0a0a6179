"""The host that tier 0 polls."""

from __future__ import annotations

from pathlib import Path

import pytest
from polled import UPDATES, Host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def known(host: Host) -> Host:
    host.poll()
    host.calls(UPDATES, 0.1, 40)
    host.poll()
    assert host.tier.markers["job"].row == UPDATES
    return host
