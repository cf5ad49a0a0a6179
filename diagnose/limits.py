"""Every threshold of the inference, in one place, with the reason for its value."""

from __future__ import annotations

# Effect: a difference that costs less than this is nobody's problem, however significant it is. The same share is asked of whatever
# costs as much of a step as it lasts of the window or is short of its peers: interrupts, a throttled or lower clock, a stop, bytes.
EFFECT_SHARE = 0.05  # of the step, with three or more peers
EFFECT_SHARE_FEW = 0.08  # with one or two peers, whose spread cannot be estimated; of a port, where no counter says why
ALONE_SHARE = 0.10  # where no peer of the same window shows what is usual, and of links: less may be how it always was
LARGE_SHARE = 0.25  # seen in a single step (a rare episode); where it cannot be proven, "unknown" and not "healthy"; a quarter of a whole
# speaks against what does not explain it
EFFECT_SECONDS = 0.0005  # what being observed costs a step that has tens of probed calls (a uprobe: 1-10 µs)

NOTHING = 0.01  # less of a step, of a window or of bytes is nothing: a sample or two
FEW = 0.1  # the rest of NEARLY_ALWAYS: less of a whole is its edge, its rounding, or one that is left out

# Significance: what a hypothesis needs to be admitted, in nats (hypotheses/rank/selection.py, hypotheses/rows.py).
SCORE_LEAST = 9.0
Z_CLEAR = 3.0  # of a change within one series, which nobody is accused of by itself
Z_HINT = 2.0  # of one measure that another one has to confirm
FALSE_DISCOVERY_RATE = 0.01
SCALE_FLOOR = 0.0125  # of the step: healthy ranks differ by about 1 %; the MAD of tight peers is 0
SCALE_FLOOR_FEW = 0.02  # of the step, with one or two peers

# Parts of a whole: an excess, a wait, a window.
HOLDS_LEAST = (
    0.5  # what explains less than half of it, does not: what a counter predicts, a function holds, the peers wait for
)
MOST = 0.7  # the frame that holds so much of an excess explains it; so much of it that was there before is by design, or is work
PART = 0.3  # worth being told beside what holds more: a second cause, what was there before; what is less is noise with a long tail,
# and an excess of which less is there in some third of the steps comes and goes as the host's noise does
NEARLY_ALL = 0.8  # told as all of it: the rest are samples, and how it begins and ends
NEARLY_ALWAYS = (
    0.9  # of steps or ranks: who is slower than its peers in so many is a suspect of a fleet, whatever it costs
)
HALVED = 0.75  # of the peers' speed or width: the next lower one of links is a half, and this is in the middle

# Rare episodes: how many of them are no accident.
SEVERAL = 3  # and of ranks or steps that are compared: of two that differ each would be odd

# Enough to judge by.
STEPS_LEAST = 5  # and silence of so many ordinary steps is none of them
STEPS_FEW = 10  # below this a large effect that is not significant is "unknown", not "healthy"

# Clocks of two hosts. NTP holds them within a few milliseconds of each other over the Internet, within one in a data centre.
CLOCK_NOTE_S = 0.010

# A stall: no marker for STEPS_LEAST ordinary steps (EROICA uses 5), and at least this long.
STALL_SECONDS = 3.0
LOST_SECONDS = 0.5  # a rank whose GPU is lost does nothing more: silence of a step and this long is a hang

# Attribution
CONCENTRATED = 2.0  # a function is odd if its excess share is this many times the excess share of the whole step; one of two answers
# is clear if the other is so many times as far off

# Links: healthy flows on a busy 2-core host were seen to differ by 2-3x.
COUNTED_RATIO = (
    3.0  # times the peers', where a counter says why: a slower link, what is sent again, pages that are asked for
)
LINK_RATIO_ALONE = 5.0  # times the peers', without a counter
LINK_RATIO_REVERSE = 10.0  # of one path's two ways, which may carry other things; small messages wait for delayed ACKs
LINK_RATIO_END = 1.6  # slowest of the other pairs to the fastest of one address; healthy ones: up to 1.3 that queue so, 1.7 that do not
LOSS_SHARE = 0.005  # of what is sent, sent again, where steps wait for it: healthy pairs showed up to 0.13 %
LOSS_STEPS = 2  # that wait for what is sent again
RTO_SECONDS = 0.15  # Linux waits 0.2 s at least for what nobody asks for again; a part of it would have passed anyway
RTT_INFLATION = 4.0  # rtt / min_rtt, and this many times that of the peers

# Hardware: what a counter must show before it says why. All against the same counter of the peers.
FOREIGN_SHARE = 0.03  # of the GPU in use by somebody else, above the peers': monitors use less
FOREIGN_BYTES = 1 << 29  # of GPU memory: a context of a monitor holds up to about 0.5 GB
FAULT_WORK_S = 50e-6  # per page that had to be reclaimed first: faulting, reclaiming, asking the disk (lab: 35-43)
MINOR_FAULT_S = 200e-6  # at most: a page of 2 MiB given and cleared; one of 4 KiB takes 0.2-1 µs
RARE_MODEL = 0.25  # of the ports: fewer of another nominal speed are degraded, not another model
EVENTS_HZ = 1.0  # errors per second: links correct a few an hour in health; it takes many to cost time
EVENTS_RATIO = 10.0  # times the peers' median: what moved on everybody accuses nobody
RATE_RATIO = 0.85  # of the peers' rate while moving, where a counter says why
RATE_RATIO_ALONE = 0.6  # the same without one: rates over healthy paths differ by their length and load
RATE_MADS = 5.0  # robust standard deviations below the peers' median rate, without a counter
FLAT_SIGMA = 1.2  # times the peers' sigma: who bursts more than its peers is not limited by its link

# What a sample of a stack stands for where no window says how often was sampled; samples of t seconds have a variance of t times it.
SAMPLING_S = 1 / 99

BYTES_LEAST = 1 << 20  # of a flow, a second or a window: of less a rate is chance
CELLS_MOST = 50_000_000  # of one matrix: half a gigabyte
FILE_BYTES_MOST = 16 << 20  # of a file that is read whole, whoever wrote it
DAY_S = 86_400.0  # no window and no function of a step is longer
TOLD = 3  # of things of one kind in one sentence
SHOWN = 5  # lines of one kind on a terminal, without -v
SUSPECTS_EXAMINED = 64  # the worst; more have one common reason, or the comparison is wrong
FLEET = 16  # ranks: from here on each step is as long as somebody's accident, hardly shorter without one suspect, and the median of the
# others hardly feels one of them
RANKS_TOLD = 1024  # of ranks in the same place: more of them tell nothing new
PEERS_EXACT = 64  # up to this many ranks in a role the rank itself is left out of its peers' median
PEERS_SAMPLED = 2000  # attribution looks at no more peers than this
