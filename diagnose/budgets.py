"""How much is read, held, looked at, told and shown at most. No inference: smaller ones change how much is said, never who is to blame."""

from __future__ import annotations

import math

# Read: of what others wrote nobody knows how long it is.
FILE_BYTES_MOST = 16 << 20  # of a file that is read whole
STORE_BYTES_MOST = FILE_BYTES_MOST * 16  # of what is kept in pieces, and of results of many jobs
WORLD_MOST = 1 << 20  # ranks: a number beyond is no rank's
TEXT_MOST = 300  # characters of a text: two files and a function
NOTE_MOST = TEXT_MOST * 4  # where a job waits takes three places with their files
NAME_MOST = 4096  # of what must stay whole: the longest path that Linux takes
DEPTH_MOST = 200  # frames of a stack: other programs read the tree by recursion
DIGITS_MOST = 9  # of the number of a device
DAY_S = 86_400.0  # no window and no function of a step is longer

# Held: of one matrix half a gigabyte, of what is made on the way several times as much.
CELLS_MOST = 50_000_000
EMPTY_MOST = 4  # cells beyond those for each step that was read: nearly every rank has nearly every step
PARTS_MOST = CELLS_MOST // 10
PAIRS_OF_MOST = math.isqrt(PARTS_MOST)  # values of which all pairs are looked at
BLOCK = 1 << 20  # cells that are worked on at once: megabytes

# Looked at one by one: of more the worst; they have one common reason, or the comparison is wrong.
EXAMINED = 64
JOBS_MOST = 64  # of all in the windows, each user's largest first: each is put together anew, and nothing is said before the last is judged

# Told and shown.
TOLD = 3  # of things of one kind in one sentence
REASONS = 3  # why somebody is a suspect, on a terminal without -v
SHOWN = 5  # lines of one kind on a terminal, without -v
INSTANCES_SHOWN = 8
