"""The mounts of a view are read once, and who mounts without number takes what he may and leaves others theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.observer.finish import mount_views
from rankscope.observer.finish.mount_views import MountViews
from rankscope.probes.host import procfs

MOUNTS = """27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 254:0 /home/data /mnt/data rw - ext4 /dev/vda rw
42 27 8:16 /sub /mnt/long rw - xfs /dev/sdb rw
43 27 8:16 /sub /mnt/b rw - xfs /dev/sdb rw
"""


def process(root: Path, pid: int, space: int, mounts: str, folder: str = "/") -> None:
    place = root / f"proc/{pid}"
    (place / "ns").mkdir(parents=True)
    (place / "ns/mnt").symlink_to(f"mnt:[{space}]")
    (place / "root").symlink_to(folder)
    (place / "mountinfo").write_text(mounts)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of mounts were read each time."""
    sizes: list[int] = []
    really = procfs.read_file

    def counted(path: str, cap: int) -> bytes:
        data = really(path, cap)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(procfs, "read_file", counted)
    return sizes


def test_processes_with_one_view_are_read_once_and_each_view_is_its_own(tmp_path: Path, read: list[int]) -> None:
    for pid in range(100, 200):
        process(tmp_path, pid, 7, MOUNTS)
    process(tmp_path, 300, 7, "27 1 254:0 / /in rw - ext4 /dev/vda rw\n", folder="/srv/jail")
    process(tmp_path, 301, 8, "27 1 254:0 / /other rw - ext4 /dev/vda rw\n")
    views = MountViews(tmp_path)
    for pid in range(100, 200):
        assert views.words(pid, [(254, 0), (8, 16), (1, 1)]) == [
            "/ (ext4 254:0)", "/mnt/b (xfs 8:16)", "device 1:1"
        ]  # fmt: skip
    assert views.words(300, [(254, 0)]) == ["/in (ext4 254:0)"]
    assert views.words(301, [(254, 0)]) == ["/other (ext4 254:0)"]
    assert views.words(302, [(254, 0)]) == ["device 254:0"]
    assert len(read) == 3


def test_mounts_without_number_in_views_without_number_are_read_for_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    monkeypatch.setattr(mount_views, "_FREELY", 50_000)
    monkeypatch.setattr(mount_views, "_EACH", 10_000)
    monkeypatch.setattr(mount_views, "whose", lambda pid, root: "one" if pid == 7 else "many")
    many = "".join(f"{n} 1 0:{n} / /{n} rw - tmpfs none rw\n" for n in range(1000))
    for pid in range(100, 140):
        process(tmp_path, pid, pid, many)
    process(tmp_path, 7, 7, MOUNTS)
    views = MountViews(tmp_path)
    for pid in range(100, 140):
        views.words(pid, [(0, 1)])
    assert sum(read) <= 50_000 + 10_000 + len(many)
    assert views.words(7, [(8, 16)]) == ["/mnt/b (xfs 8:16)"]


def test_who_has_used_up_his_share_does_not_leave_others_without_the_mounts_that_they_see_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    monkeypatch.setattr(mount_views, "_FREELY", 10_000)
    monkeypatch.setattr(mount_views, "_EACH", 1_000)
    monkeypatch.setattr(mount_views, "whose", lambda pid, root: "user 1000" if pid < 100 else "user 1666")
    process(tmp_path, 100, 100, "".join(f"{n} 1 0:{n} / /{n} rw - tmpfs none rw\n" for n in range(1000)))
    process(tmp_path, 103, 100, "")
    for pid in (7, 8, 101, 102):
        process(tmp_path, pid, 7, MOUNTS)
    views = MountViews(tmp_path)
    assert views.words(100, [(0, 1)]) == views.words(103, [(0, 1)]) == ["/1 (tmpfs 0:1)"]
    assert views.words(101, [(8, 16)]) == views.words(102, [(8, 16)]) == ["device 8:16"]
    assert [views.words(pid, [(8, 16)]) for pid in (7, 8, 101)] == [["/mnt/b (xfs 8:16)"]] * 3
    assert views.notes == ["user 1666: pid 100 has more mounts than were read: some devices are named by number"]
    assert [size for size in read if size] == [10_000, len(MOUNTS)]


def test_who_cannot_be_read_leaves_nobody_without_the_mounts_that_they_see_too(tmp_path: Path) -> None:
    for pid in (7, 8):
        process(tmp_path, pid, 7, MOUNTS)
    (tmp_path / "proc/7/mountinfo").unlink()
    views = MountViews(tmp_path)
    assert views.words(7, [(8, 16)]) == ["device 8:16"]
    assert views.words(8, [(8, 16)]) == views.words(7, [(8, 16)]) == ["/mnt/b (xfs 8:16)"]
    assert not views.notes
