"""Every threshold of the inference, in one place, with the reason for its value."""

from __future__ import annotations

# Effect: a difference that costs less than this is nobody's problem, however significant it is.
EFFECT_SHARE = 0.05  # of the step, with three or more peers
EFFECT_SHARE_FEW = 0.08  # with one or two peers, whose spread cannot be estimated
EFFECT_SECONDS = 0.003  # timer ticks and scheduler slices of a busy host are about this long

# Significance: robust z of a rank's own time against its peers, and the false-discovery rate over all ranks tested.
Z_LEAST = 4.0
FALSE_DISCOVERY_RATE = 0.01
STEADY = 0.3  # of the excess must be there in every third of the steps: what comes and goes is the host's noise
SCALE_FLOOR = 0.0125  # of the step: healthy ranks differ by about 1 %; the MAD of tight peers is 0
SCALE_FLOOR_FEW = 0.02  # of the step, with one or two peers

# Rare episodes: a step in which a rank is suddenly slower by this share of a step, and how many of them are no accident.
EPISODE_SHARE = 0.5
EPISODES_LEAST = 3

# Enough to judge by.
STEPS_LEAST = 5
STEPS_FEW = 10  # below this a large effect that is not significant is "unknown", not "healthy"
UNKNOWN_SHARE = 0.25  # of the step: an effect this large that cannot be proven is reported as unknown

# A change of level of the step time inside the window.
ONSET_Z = 3.0  # Mann-Whitney z at the best split
ONSET_LEVEL = 0.05  # of the step

# A stall: no marker for this many ordinary steps (EROICA uses 5), and at least this long.
STALL_STEPS = 5.0
STALL_SECONDS = 3.0
STOPPED_SHARE = 0.05  # of the window in state T that is a fault although the rank runs again
STOPPED_SECONDS = 0.5

# Attribution: the deepest frame that holds this share of the excess is the function that explains it.
FRAME_HOLDS = 0.7
FRAME_HOLDS_LEAST = 0.5  # of the excess, for a frame that is odd by itself
CONFIRMED_LEAST = 0.3  # of a rank's excess by its steps must be found again in its functions
CHARGE_LEAST = 0.3  # of a rank's excess: a second cause on the same rank must explain this much
CONCENTRATED = 2.0  # a function is odd if its excess share is this many times the excess share of the whole step

# Links: healthy flows on a busy 2-core host were seen to differ by 2-3x.
FLOW_BYTES_LEAST = 1 << 20
FLOW_SHARE_LEAST = 0.1  # of the bytes of the largest flow
LINK_EFFECT_SHARE = 0.10  # of the step
LINK_RATIO = 3.0  # with a counter that says why
LINK_RATIO_ALONE = 5.0  # without one
RETRANSMIT_SHARE = 0.01
RTT_INFLATION = 4.0  # rtt / min_rtt, and this many times that of the peers

# Comparison with the baseline windows.
STAGE_SHARE = 0.10  # of the step: a role this much heavier than the median role is an imbalance
BASELINE_SHARE = 0.10  # of the baseline step
SAME_AS_BASELINE = 0.7  # an excess of which this share was there before is by design

SUSPECTS_EXAMINED = 64  # the worst; more have one common reason, or the comparison is wrong
PEERS_EXACT = 64  # up to this many ranks in a role the rank itself is left out of its peers' median
PEERS_SAMPLED = 2000  # attribution looks at no more peers than this
