"""What is root's and is said to be: no path leads out of its folder, no link stands for a lock or a log, and no secret is shown."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from rankscope.diagnose.service.place import WatchPlace
from rankscope.observer.window import staging
from rankscope.observer.window.store.place import StoreFailed, failures
from rankscope.probes.base import folders
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import UnsafePlace, read_ours, trusted_owners

SECRET, ENCODED = "s/cr t", "s%2Fcr%20t"


def test_a_name_below_a_folder_does_not_lead_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "above").write_text("x")
    (tmp_path / "top").mkdir()
    with pytest.raises(UnsafePlace, match="it is not below"):
        read_ours(tmp_path / "top", ("..", "above"), 10)


def test_who_says_that_sudo_was_called_by_somebody_is_believed_as_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1666")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert trusted_owners() == {0, 1000}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert trusted_owners() == {0, 1666}


def test_a_link_in_place_of_the_services_lock_or_log_is_not_followed(tmp_path: Path) -> None:
    place = WatchPlace(tmp_path / "watch")
    place.log({"what": "begun"})
    (tmp_path / "known").write_text("as it was")
    for name in ("lock", "events.jsonl"):
        (place.folder / name).unlink(missing_ok=True)
        (place.folder / name).symlink_to(tmp_path / "known")
    with pytest.raises(OutputFailed), place.held():
        pass
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        place.log({"what": "more"})
    assert (tmp_path / "known").read_text() == "as it was"


def test_a_link_among_the_requests_is_not_read_and_hides_none(tmp_path: Path) -> None:
    place = WatchPlace(tmp_path / "watch")
    place.ask("job")
    (tmp_path / "known").write_text("not for the service")
    (place.folder / "trigger/0").symlink_to(tmp_path / "known")
    assert place.asked() == ("job",)


@pytest.mark.parametrize("form", [SECRET, ENCODED])
def test_what_a_store_answers_is_shown_without_what_may_be_a_secret(form: str) -> None:
    for uri in (f"s3://bucket/path?token={ENCODED}", f"s3://user:{ENCODED}@bucket/path"):
        said = f"odd: {uri.partition('?')[2] or form}"
        with pytest.raises(StoreFailed) as caught, failures("s3://bucket/path", uri):
            raise OSError(said)
        assert "odd" in str(caught.value) and SECRET not in str(caught.value) and ENCODED not in str(caught.value)


def test_each_file_of_a_window_has_reached_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        assert not (tmp_path / "window").exists() or flushed[-1] == tmp_path.name
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    staging.write_folder(
        tmp_path, "window", {name: lambda file: file.write(b"x") and None for name in ("one", "another")}
    )
    assert flushed[:2] == ["one", "another"] and len(flushed) == 4


def test_a_lock_that_somebody_took_for_left_before_it_was_locked_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN one who removes what nobody holds, at just that moment, once
    lock, removed = fcntl.flock, list[str]()

    def locks(descriptor: int, how: int) -> None:
        if not removed:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            path.unlink()
            removed.append(path.name)
        lock(descriptor, how)

    monkeypatch.setattr(staging.fcntl, "flock", locks)
    with folders.opened_folder(tmp_path) as place, staging._locked_name(place) as name:
        assert removed and f"{name}.lock" not in removed
        assert (tmp_path / f"{name}.lock").exists()
