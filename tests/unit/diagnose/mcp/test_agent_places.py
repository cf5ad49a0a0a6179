"""Which paths an agent may read: windows below allowed folders that nobody else could have put there or changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import Job, build

from rankscope.diagnose.face.mcp import places
from rankscope.diagnose.face.mcp.places import Places, Refused
from rankscope.observer.window.folder import write_window

OTHER = 65534


@pytest.fixture
def window(tmp_path: Path) -> Path:
    return write_window(build(Job())[0], tmp_path / "allowed/run")


def allowed(tmp_path: Path) -> Places:
    return Places((tmp_path / "allowed",), tmp_path / "history", tmp_path / "state")


def test_a_window_is_meant_by_its_path_or_by_a_folder_of_it(window: Path, tmp_path: Path) -> None:
    mine = allowed(tmp_path)
    for given in (str(window), f"run/{window.name}", "run", str(window.parent)):
        assert mine.folders(given) == ([window], [])
    assert list(mine.all()) == [window]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "..",
        "../outside",
        "run/../../outside",
        "/",
        "/etc",
        "gs://b/w",
        "run\n",
        "x" * 5000,
        "run/none",
        "~root",
        ".",
    ],
)
def test_no_path_leads_out_of_what_is_allowed(window: Path, tmp_path: Path, given: str) -> None:
    write_window(build(Job())[0], tmp_path / "outside")
    with pytest.raises(Refused):
        allowed(tmp_path).folders(given)
    with pytest.raises(Refused):
        allowed(tmp_path).folders(str(next((tmp_path / "outside").iterdir())))


@pytest.mark.parametrize(
    "what", ["link to a window", "link in a window", "others can write", "a file of others", "fifo"]
)
def test_what_others_could_have_put_there_is_refused_and_not_listed(window: Path, tmp_path: Path, what: str) -> None:
    given = window
    if what == "link to a window":
        given = tmp_path / "allowed/link"
        given.symlink_to(window)
    elif what == "link in a window":
        (window / "ranks.parquet").rename(tmp_path / "ranks.parquet")
        (window / "ranks.parquet").symlink_to(tmp_path / "ranks.parquet")
    elif what == "others can write":
        window.chmod(0o777)
    elif what == "fifo":
        (window / "window.json").unlink()
        os.mkfifo(window / "window.json", 0o622)
        (window / "window.json").chmod(0o622)
    elif os.geteuid() == 0:
        os.chown(window / "steps.parquet", OTHER, OTHER)
    else:
        pytest.skip("needs root, to give files away")
    with pytest.raises(Refused):
        allowed(tmp_path).folders(str(given))
    assert list(allowed(tmp_path).all()) == ([window] if what == "link to a window" else [])


def test_a_folder_with_more_windows_than_one_question_may_mean_is_refused(
    window: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_window(build(Job(name="another"))[0], window.parent)
    assert len(allowed(tmp_path).folders("run")[0]) == 2
    monkeypatch.setattr(places, "WINDOWS_MOST", 1)
    with pytest.raises(Refused, match="more than 1 windows"):
        allowed(tmp_path).folders("run")
