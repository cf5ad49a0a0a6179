"""Who had the lab to itself goes on as it was before."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from labkit.machine import guard

ENDING = (signal.SIGTERM, signal.SIGHUP)


def test_signals_that_end_a_process_are_interrupts_while_the_lab_is_held_and_no_longer(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in ENDING]
    for number in ENDING:
        with pytest.raises(KeyboardInterrupt), guard.lab_to_oneself(tmp_path / "lock", lambda: 0):
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in ENDING] == before
