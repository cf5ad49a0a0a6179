"""Notes besides the suspects: one line of text each, with a code for its kind.

Programs use the code, never the words. The JSON of a verdict contains the texts alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class NoteCode(str, Enum):
    """Kinds of notes."""

    # Missing or invalid data, found when reading windows or a file.
    OBSERVER = "observer"  # text from a host's observer
    EVENTS_LOST = "events-lost"
    UNSEEN = "unseen"  # an indispensable source, or one that a suspect rests on, is missing
    UNSEEN_PART = "unseen-part"  # another source is missing: some causes cannot be named
    OTHER_JOBS = "other-jobs"
    OTHER_MOMENTS = "other-moments"
    HOSTS_MISSING = "hosts-missing"
    HOST_TWICE = "host-twice"  # two windows of one host
    OBJECTS_LEFT_OUT = "objects-left-out"  # objects of a store that are no windows, or unreadable
    SAME_NUMBERS = "same-numbers"
    OTHER_USERS = "other-users"  # other users claim ranks of the job
    RANKS_TWICE = "ranks-twice"
    RANKS_MISSING = "ranks-missing"  # on other hosts, or gone
    RANKS_MISSING_HERE = "ranks-missing-here"  # missing although their host has a window
    RANKS_GUESSED = "ranks-guessed"  # numbers of processes are guessed
    STEPS_IMPOSSIBLE = "steps-impossible"
    STEPS_DIFFER = "steps-differ"
    CLOCKS_DIFFER = "clocks-differ"
    STEPS_UNMATCHED = "steps-unmatched"  # steps of hosts could not be matched reliably
    STEPS_MISSING = "steps-missing"
    STEPS_TWICE = "steps-twice"
    TIMINGS_ALONE = "timings-alone"
    SUMS_DIFFER = "sums-differ"
    WHOLE_STEP = "whole-step"  # a column of a file of timings contains the others
    MIXED_AS_WORK = "mixed-as-work"  # columns that contain waiting count as work
    WORLD_CHANGED = "world-changed"  # the number of ranks changed
    LOCAL_NUMBERS = "local-numbers"  # ranks were numbered from 0 on each host
    ROLES_PARTLY = "roles-partly"
    ROWS_UNUSABLE = "rows-unusable"
    ROWS_TWICE = "rows-twice"
    FUNCTIONS_UNUSABLE = "functions-unusable"
    RANKS_BLIND = "ranks-blind"  # no GPU data
    RANKS_ENDED = "ranks-ended"
    RANKS_SHORT = "ranks-short"  # too few steps
    LOADING = "loading"  # one rank loads something at the end of the window, and the others wait
    # What the fleet was compared with.
    BASELINE_CHOSEN = "baseline-chosen"
    BASELINE_NONE = "baseline-none"
    CODE_CHANGED = "code-changed"
    DESIGNED = "designed"  # an excess already in the baseline
    OWN_PAST = "own-past"
    MAJORITY = "majority"
    STRETCH = "stretch"  # only a part of the steps is judged
    WITHOUT_QUEUE = "without-queue"  # run-queue wait was removed before judging
    BEHIND_GPU = "behind-gpu"  # CPU work may overlap with the GPU's and cost less than it takes
    # The course of the steps.
    STEPS_DRIFT = "steps-drift"
    STEPS_CHANGED = "steps-changed"
    HOST_BUSY = "host-busy"  # other processes' CPU use made steps longer
    PAGES_GIVEN = "pages-given"  # a rank is slower because of repeated page faults
    PAUSE = "pause"  # a function that lengthens only a few steps
    SPIKES = "spikes"
    SELDOM = "seldom"  # one rank was slow in few steps, maybe by chance; mean above the effect floor
    SELDOM_LITTLE = "seldom-little"  # one rank was slow in few steps, maybe by chance; mean below the effect floor
    MOVING_NOISE = "moving-noise"
    STALLS_OF_OTHERS = "stalls-of-others"
    # Why a slow rank is no suspect, or not all ranks were examined.
    NOT_WAITED_FOR = "not-waited-for"
    PARTLY_TIMED = "partly-timed"  # the untimed rest of a rank's steps counts as own time
    UNTIMED = "untimed"  # waiting of the others was not timed
    WAITED_FOR = "waited-for"  # a rank the others wait for, without a known reason
    NO_GAIN = "no-gain"
    NO_FUNCTION = "no-function"
    FEW_PEERS = "few-peers"
    WORST_ONLY = "worst-only"
    READ_IN_FULL = "read-in-full"  # hosts of a large fleet that were read in full
    # Why no suspect can be named.
    NOT_JUDGED = "not-judged"  # the job's data cannot be used
    NO_STEPS = "no-steps"
    NO_STEP_YET = "no-step-yet"  # the ranks work: a step may be long
    FEW_STEPS = "few-steps"
    ONE_RANK = "one-rank"
    LOOKED_ON = "looked-on"  # an earlier window was not enough
    UNPROVEN = "unproven"
    NO_PEERS = "no-peers"
    NOBODY = "nobody"  # steps became longer, and no rank is odd
    # Hangs and hardware.
    ALL_WAIT = "all-wait"
    UNACKNOWLEDGED = "unacknowledged"
    DUMPS_ALONE = "dumps-alone"
    COUNTER_IDLE = "counter-idle"  # a counter moved, and no rank waits for its rank
    ALL_LOW = "all-low"  # most devices have a low speed or clock
    XID = "xid"
    GPU_LOST = "gpu-lost"


ACQUITTED = frozenset(
    {NoteCode.NOT_WAITED_FOR, NoteCode.UNTIMED, NoteCode.NO_GAIN, NoteCode.NO_FUNCTION, NoteCode.FEW_PEERS}
)  # notes on why a slower rank is no suspect


# Notes on slowness that is not the job's fault.
EXCUSES = frozenset({NoteCode.HOST_BUSY, NoteCode.PAGES_GIVEN})


# Notes that the steps of the window are not of one length.
COURSES = frozenset({NoteCode.STEPS_DRIFT, NoteCode.STEPS_CHANGED})


LONGER_TELLS = frozenset(
    {
        NoteCode.NO_STEP_YET,
        NoteCode.FEW_STEPS,
        NoteCode.UNPROVEN,
        NoteCode.SELDOM,
        NoteCode.NOBODY,
        NoteCode.NO_FUNCTION,
    }
)  # notes that a longer window may resolve


@dataclass(frozen=True, slots=True)
class Note:
    """One line besides the suspects.

    `rank`: number of the only rank it is about; -1: several or none.
    """

    code: NoteCode
    text: str
    rank: int = -1

    def __str__(self) -> str:
        return self.text
