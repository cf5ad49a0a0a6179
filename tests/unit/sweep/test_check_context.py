"""What a check is given: its settings as they are, files that may be refused, counters that could not be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_trees import EDAC, NOW_S, host, look_all, put, remember

from rankscope.diagnose.sweep import context as contexts
from rankscope.diagnose.sweep.context import Context, Unreadable


def test_a_setting_that_is_no_number_is_never_used_as_one() -> None:
    with pytest.raises(TypeError, match="x: setting known is no number"):
        Context("x", {"known": ("1",)}).number("known")


def test_what_may_not_be_read_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    assert Context("x", {}, tmp_path).text("absent") is None
    monkeypatch.setattr(contexts, "read_file", refuse)
    with pytest.raises(PermissionError):
        Context("x", {}, tmp_path).text("there")


def test_a_reason_and_the_right_that_is_missing_are_two_things() -> None:
    why = Unreadable("it is locked", "Run as root.")
    assert (str(why), why.right) == ("it is locked", "Run as root.")


@pytest.mark.parametrize("later_s", [3600.0, 90_000.0])
def test_a_counter_that_could_not_be_read_is_known_as_long_as_it_is_asked_for(tmp_path: Path, later_s: float) -> None:
    host(tmp_path, {f"{EDAC}/ce_count": "7", f"{EDAC}/ue_count": "0"})
    seen = remember(look_all(tmp_path, "mem.ecc"))
    put(tmp_path, {f"{EDAC}/ue_count": ""})
    done = look_all(tmp_path, "mem.ecc", seen, NOW_S + later_s)
    assert any("ue" in key for _, key in done.unread)
