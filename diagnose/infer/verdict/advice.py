"""What to do about a verdict: the first suspect's action, or what would settle an open question."""

from __future__ import annotations

import math

from rankscope.diagnose import limits
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode

_BASELINE = (
    "Compare with a window from when the job was well: `rankscope diagnose --baseline DIR`, or `--baseline auto` on the "
    "host that observed it."
)
_DOCTOR = "Run `rankscope doctor` as root on these hosts: it says what is missing there and how to get it."
_ALL_HOSTS = (
    "Judge the windows of all its hosts together; where they say no more, give the dumps of NCCL's flight recorder "
    "(--flight-recorder DIR): they say which rank did not come."
)
_AGAIN = "Record the window again; where others of the job can be used, leave this one out."
_SEEN = "See with `rankscope ranks -v` what is seen of it and what is not, then look again while it makes steps."
_PARTS = "Give the parts of a step in functions of their own, work apart from waiting, and judge the file again."
_DO = {
    NoteCode.UNSEEN: _DOCTOR,
    NoteCode.RANKS_BLIND: _DOCTOR,
    NoteCode.NO_STEPS: _SEEN,
    NoteCode.UNTIMED: f"See with `rankscope ranks` which of its collectives can be seen. {_BASELINE}",
    NoteCode.ONE_RANK: "Judge it with the windows of its other hosts, or against earlier ones (--baseline DIR).",
    NoteCode.NO_PEERS: _BASELINE,
    NoteCode.NOBODY: _BASELINE,
    NoteCode.FEW_PEERS: _BASELINE,
    NoteCode.NO_GAIN: _BASELINE,
    NoteCode.NOT_WAITED_FOR: _BASELINE,
    NoteCode.NOT_JUDGED: _AGAIN,
    NoteCode.WAITED_FOR: _PARTS,
    NoteCode.RANKS_MISSING_HERE: "See with `rankscope ranks -v` on its host why a rank was not seen, then look again.",
    NoteCode.RANKS_MISSING: _ALL_HOSTS,
    NoteCode.LOADING: "Look again when it is over; if it lasts, find out what that rank loads, and from where.",
    NoteCode.ALL_WAIT: _ALL_HOSTS,
    NoteCode.DUMPS_ALONE: _ALL_HOSTS,
    NoteCode.UNACKNOWLEDGED: "Look at the host that does not acknowledge: is it up, is its network, does its process live?",
}  # fmt: skip
_MORE_STEPS = "Give a file with more steps: {steps} and more tell."


def action_of(verdict: Verdict) -> str:
    """Return what to do next; '' for a healthy verdict."""
    if verdict.suspects:
        return verdict.suspects[0].action
    if verdict.status == "healthy":
        return ""
    first = verdict.notes[0].code if verdict.notes else None
    if verdict.status == "hang":
        codes = {note.code for note in verdict.notes}
        first = NoteCode.UNACKNOWLEDGED if NoteCode.UNACKNOWLEDGED in codes else NoteCode.ALL_WAIT
    return (_DO.get(first) if first is not None else None) or _longer(verdict)


def longer_s(step_s: float, window_s: float) -> int:
    """Seconds of a window long enough to prove a large effect, and at least twice as long as this one.

    `step_s`: usual step; `window_s`: length of this window.
    """
    return max(math.ceil(2 * limits.STEPS_FEW * step_s), 2 * round(window_s), 1)


def _longer(verdict: Verdict) -> str:
    """Return advice to observe for longer, by at least twice this window."""
    steps = 2 * limits.STEPS_FEW
    if not math.isfinite(verdict.start):  # timings that others measured
        return _MORE_STEPS.format(steps=max(steps, 2 * verdict.steps))
    seconds = longer_s(verdict.step_seconds.p50 or 0.0, verdict.end - verdict.start)
    return f"Look again for longer: `--window {seconds}` with `rankscope diagnose` or `rankscope record`."
