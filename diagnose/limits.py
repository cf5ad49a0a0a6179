"""Every threshold of the inference, in one place, with the reason for its value. What follows from another one is computed from it.

Sizes that only bound how much is read or said: budgets.py.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from rankscope.observer.window.manifest import FIRST_SAMPLING_HZ

# Effect: a difference that costs less than this is nobody's problem, however significant it is. The same share is asked of whatever
# costs as much of a step as it lasts of the window or is short of its peers: interrupts, a throttled or lower clock, a stop, bytes.
EFFECT_SHARE = 0.05  # of the step
# Where no peer of the same window shows what is usual, and of links: less may be how it always was.
ALONE_SHARE = EFFECT_SHARE * 2
LARGE_SHARE = 0.25  # seen in a single step (a rare episode); where it cannot be proven, "unknown" and not "healthy"; a quarter of a whole
# speaks against what does not explain it; so few of another nominal speed are degraded, not another model
EFFECT_SECONDS = 0.0005  # what being observed costs a step that has tens of probed calls (a uprobe: 1-10 µs)

FEW = 0.1  # less of a whole is its edge, its rounding, or one that is left out; what few values show is uneven by as much of itself
NOTHING = FEW**2  # less of a step, of a window or of bytes is nothing: a sample or two

# Significance: what a hypothesis needs to be admitted, in nats (infer/causes/rank/selection.py, infer/causes/rows.py).
# Fitted on the corpus (scripts/corpus): 6.4 accuses no innocent, without some kind of window between 4.5 and 9. Of what lies between, where
# a third more or less changes fewest verdicts of 1,992: 13 and 16 (9: 9 and 20, 8: 19 and 11).
SCORE_LEAST = 8.5
FALSE_DISCOVERY_RATE = math.exp(-SCORE_LEAST / 2)  # 1.4 %: half of what admits
Z_CLEAR = NormalDist().inv_cdf(1 - math.exp(-SCORE_LEAST))  # 3.5: what would admit by itself
Z_HINT = 2.0  # of one measure that another one has to confirm; 1.8 takes what strangers took for a while for a function, 2.1 misses quotas
# Of the step, 1.4 %: healthy ranks differ by about 1 %, and the MAD of tight peers is 0. What is just large enough to count is just clear.
SCALE_FLOOR = EFFECT_SHARE / Z_CLEAR

# Parts of a whole: an excess, a wait, a window.
# What explains less than half of it, does not: what a counter predicts, a function holds, the peers wait for.
HOLDS_LEAST = 0.5
PART = 0.3  # worth being told beside what holds more: a second cause, what was there before; what is less is noise with a long tail,
# and an excess of which less is there in some third of the steps comes and goes as the host's noise does
# The frame that holds so much of an excess explains it; so much of it that was there before is by design, or is work.
MOST = 1 - PART
NEARLY_ALL = 1 - FEW  # told as all of it: the rest are samples, and how it begins and ends
# Of steps or ranks: who is slower than its peers in so many is a suspect of a fleet, whatever it costs.
NEARLY_ALWAYS = NEARLY_ALL
HALVED = 1 - LARGE_SHARE  # of the peers' speed or width: the next lower one of links is a half

# Rare episodes: how many of them are no accident.
SEVERAL = 3  # and of accused or steps that are compared: of two that differ each would be odd

# Enough to judge by.
STEPS_LEAST = 5  # and silence of so many ordinary steps is none of them
STEPS_FEW = STEPS_LEAST * 2  # below this a large effect that is not significant is "unknown", not "healthy"

# Clocks of two hosts. NTP holds them within a few milliseconds of each other over the Internet, within one in a data centre.
CLOCK_NOTE_S = 0.010

# A stall: no marker for STEPS_LEAST ordinary steps (EROICA uses 5), and at least this long.
STALL_SECONDS = 3.0
# A start is no hang for so long: importing, connecting the ranks, preparing data, loading a checkpoint and compiling take seconds to
# minutes (MegaScale, NSDI'24: connecting 2,048 GPUs took 1,047 s before it was mended, below 5 s after). PyTorch's own time-outs are 10
# minutes over NCCL and 30 over gloo: from the shorter of the two on, ranks that wait for one that does not come are ended for it.
START_SECONDS = 600.0
# A rank whose GPU is lost does nothing more: silence of one step and this long is a hang.
LOST_SECONDS = STALL_SECONDS / STEPS_LEAST

# Attribution
CONCENTRATED = 2.0  # a function is odd if its excess share is this many times the excess share of the whole step; one of two answers
# is clear if the other is so many times as far off; ranks whose bytes or messages differ by as much do other work

# Times: of one path's two ways, which may carry other things (small messages wait for delayed ACKs); times the peers' median of errors,
# for what moved on everybody accuses nobody.
OTHER_KIND = 1 / FEW
# Links: healthy flows on a busy 2-core host were seen to differ by 2-3x, all pairs of one address by 1.7x. Times the peers': slower, sent
# again, queueing; pages that are asked for.
LINK_RATIO = OTHER_KIND / CONCENTRATED
LOSS_SHARE = 0.005  # of what is sent, sent again, where steps wait for it: healthy pairs showed up to 0.13 %
RTO_SECONDS = 0.15  # Linux waits 0.2 s at least for what nobody asks for again; a part of it would have passed anyway

# Hardware: what a counter must show before it says why. All against the same counter of the peers.
FOREIGN_BYTES = 1 << 29  # of GPU memory: a context of a monitor holds up to about 0.5 GB
FAULT_WORK_S = 50e-6  # per page that had to be reclaimed first: faulting, reclaiming, asking the disk (lab: 35-43)
MINOR_FAULT_S = 200e-6  # at most: a page of 2 MiB given and cleared
SMALL_FAULT_S = 1e-6  # of 4 KiB: 0.2 on bare metal, 1.1-1.3 where the hypervisor gives it as well
NEW_PAGE_S = 5e-6  # of 4 KiB, at most: faulted, cleared and taken back, 2.7 where the hypervisor gives it as well
EVENTS_HZ = 1.0  # errors per second: links correct a few an hour in health; it takes many to cost time

# What a sample of a stack stands for where no window says how often was sampled; samples of t seconds have a variance of t times it.
SAMPLING_S = 1 / FIRST_SAMPLING_HZ

BYTES_LEAST = 1 << 20  # of a flow, a second or a window: of less a rate is chance
FLEET = 16  # ranks: from here on each step is as long as somebody's accident, hardly shorter without one suspect, and the median of the
# others hardly feels one of them
PEERS_EXACT = FLEET * 4  # up to this many ranks in a role the rank itself is left out of its peers' median
# Of more peers, or of more ranks in the same place, the rest tell nothing new: a median is known to 3 % of the spread.
PEERS_SAMPLED = 2000
