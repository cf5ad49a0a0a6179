"""What a reader must know beside the suspects: one line of text, and a code that says what kind of line it is.

Programs look at the code, never at the words. The JSON of a verdict holds the texts alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class NoteCode(str, Enum):
    """What a note is about."""

    # What the data lack, as the reader of windows or of a file found it.
    OBSERVER = "observer"  # text of the observer of a host
    EVENTS_LOST = "events-lost"
    UNSEEN = "unseen"  # a source that nothing can be judged without, or that a suspect rests on, was not there
    UNSEEN_PART = "unseen-part"  # another source was not there: some causes cannot be named
    OTHER_JOBS = "other-jobs"
    OTHER_MOMENTS = "other-moments"
    HOSTS_MISSING = "hosts-missing"
    HOST_TWICE = "host-twice"  # two windows of it
    OBJECTS_LEFT_OUT = "objects-left-out"  # of a store: no windows, or unreadable
    SAME_NUMBERS = "same-numbers"
    OTHER_USERS = "other-users"  # who claim ranks of the job
    RANKS_TWICE = "ranks-twice"
    RANKS_MISSING = "ranks-missing"  # on other hosts, or gone
    RANKS_MISSING_HERE = "ranks-missing-here"  # they should run on a host that has a window
    RANKS_GUESSED = "ranks-guessed"  # which process has which number
    STEPS_IMPOSSIBLE = "steps-impossible"
    STEPS_DIFFER = "steps-differ"
    CLOCKS_DIFFER = "clocks-differ"
    STEPS_UNMATCHED = "steps-unmatched"  # which of them belong together is not sure
    STEPS_MISSING = "steps-missing"
    STEPS_TWICE = "steps-twice"
    TIMINGS_ALONE = "timings-alone"
    SUMS_DIFFER = "sums-differ"
    WHOLE_STEP = "whole-step"  # a column of a file of timings contains the others
    MIXED_AS_WORK = "mixed-as-work"  # columns that contain waiting count as work
    WORLD_CHANGED = "world-changed"  # the number of ranks
    LOCAL_NUMBERS = "local-numbers"  # ranks were numbered anew on each host
    ROLES_PARTLY = "roles-partly"
    ROWS_UNUSABLE = "rows-unusable"
    ROWS_TWICE = "rows-twice"
    FUNCTIONS_UNUSABLE = "functions-unusable"
    RANKS_BLIND = "ranks-blind"  # their GPUs are not seen
    RANKS_ENDED = "ranks-ended"
    RANKS_SHORT = "ranks-short"  # of steps
    LOADING = "loading"  # one rank loads something at the end of the window, and the others wait
    # What was compared with.
    BASELINE_CHOSEN = "baseline-chosen"
    BASELINE_NONE = "baseline-none"
    CODE_CHANGED = "code-changed"
    DESIGNED = "designed"  # so already in the baseline
    OWN_PAST = "own-past"
    MAJORITY = "majority"
    STRETCH = "stretch"  # a part of the steps alone is judged
    WITHOUT_QUEUE = "without-queue"  # judged as if nobody had stood in the queue for a CPU
    BEHIND_GPU = "behind-gpu"  # a host's work may cost less than it takes
    # How the steps run.
    STEPS_DRIFT = "steps-drift"
    STEPS_CHANGED = "steps-changed"
    HOST_BUSY = "host-busy"  # steps became longer by what others took of the CPU
    PAGES_GIVEN = "pages-given"  # a rank is slower, by pages of memory that it is given again and again
    PAUSE = "pause"  # what happens in a few steps only, by its function
    SPIKES = "spikes"
    SELDOM = "seldom"  # one rank alone was slow in so few steps that it may be chance, for more than a floor on average
    SELDOM_LITTLE = "seldom-little"  # the same, for less
    MOVING_NOISE = "moving-noise"
    STALLS_OF_OTHERS = "stalls-of-others"
    # Why somebody is not accused, or not all were looked at.
    NOT_WAITED_FOR = "not-waited-for"
    PARTLY_TIMED = "partly-timed"  # of some rank: what is left of its steps counts as its own
    UNTIMED = "untimed"  # the waiting of the others was not timed
    WAITED_FOR = "waited-for"  # a rank of which nothing shows why
    NO_GAIN = "no-gain"
    NO_FUNCTION = "no-function"
    FEW_PEERS = "few-peers"
    WORST_ONLY = "worst-only"
    READ_IN_FULL = "read-in-full"  # of a large fleet
    # Why nobody can be named.
    NOT_JUDGED = "not-judged"  # what is there of this job cannot be used
    NO_STEPS = "no-steps"
    NO_STEP_YET = "no-step-yet"  # the ranks are at work: it may be long
    FEW_STEPS = "few-steps"
    ONE_RANK = "one-rank"
    LOOKED_ON = "looked-on"  # an earlier window did not tell
    UNPROVEN = "unproven"
    NO_PEERS = "no-peers"
    NOBODY = "nobody"  # steps became longer, and no rank stands out
    # Hangs and hardware.
    ALL_WAIT = "all-wait"
    UNACKNOWLEDGED = "unacknowledged"
    DUMPS_ALONE = "dumps-alone"
    COUNTER_IDLE = "counter-idle"  # it moved, and nobody waits for it
    ALL_LOW = "all-low"  # a speed or clock of most devices
    XID = "xid"
    GPU_LOST = "gpu-lost"


ACQUITTED = frozenset(
    {NoteCode.NOT_WAITED_FOR, NoteCode.UNTIMED, NoteCode.NO_GAIN, NoteCode.NO_FUNCTION, NoteCode.FEW_PEERS}
)  # notes that tell why a rank that is slower is not accused


# Notes on what makes ranks slower and is no fault of the job.
EXCUSES = frozenset({NoteCode.HOST_BUSY, NoteCode.PAGES_GIVEN})


LONGER_TELLS = frozenset(
    {
        NoteCode.NO_STEP_YET,
        NoteCode.FEW_STEPS,
        NoteCode.UNPROVEN,
        NoteCode.SELDOM,
        NoteCode.NOBODY,
        NoteCode.NO_FUNCTION,
    }
)  # notes on what may only be too short a window to tell


@dataclass(frozen=True, slots=True)
class Note:
    """One line beside the suspects. `rank`: the number of the one rank that it is about; -1 where it is about others or none."""

    code: NoteCode
    text: str
    rank: int = -1

    def __str__(self) -> str:
        return self.text
