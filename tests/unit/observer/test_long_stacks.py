"""Stacks that are too long to be kept: the leaf says what is done, the root on whose behalf."""

from __future__ import annotations

from rankscope.observer.live.process_watch import name_frames
from rankscope.observer.window.stacks import LEFT_OUT
from rankscope.observer.window.users_code import users_code
from rankscope.unwinder.names.code import Frame

DYNAMO = "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/symbolic_convert.py"


def frame(name: str, file: str) -> Frame:
    return Frame(name, file, 10, 12, stale=False)


def test_of_a_stack_that_is_too_long_the_middle_is_left_out() -> None:
    """torch.compile: a hundred functions below the user's."""
    below = [frame(f"step{number}", DYNAMO) for number in range(120)]
    told = name_frames([*below, frame("train", "/srv/job/train.py"), frame("<module>", "/srv/job/train.py")])
    names = [each.name for each in told.frames]
    assert names[:2] == ["<module>", "train"] and names[-1] == told.name == "step0"
    gap = told.frames.index(LEFT_OUT)
    # As many of the leaf's as of the root's, each in its order.
    assert names[gap + 1 :] == [f"step{number}" for number in range(len(names) - gap - 1)][::-1]
    assert names[2:gap] == [f"step{number}" for number in range(119, 121 - gap, -1)]
    assert abs(2 * gap - len(names)) <= 4
    assert sum(len(each.name) + len(each.file) for each in told.frames) < 4096


def test_a_stack_that_fits_is_kept_whole() -> None:
    told = name_frames([frame(f"f{number}", "/srv/job/train.py") for number in range(60)])
    assert [each.name for each in told.frames] == [f"f{number}" for number in range(59, -1, -1)]


def test_of_one_frame_that_is_too_long_there_is_the_leaf() -> None:
    told = name_frames([frame("f" * 5000, "x.py"), frame("main", "/srv/job/train.py")])
    assert [each.name[:4] for each in told.frames] == [LEFT_OUT.name, "ffff"]


def test_what_nobody_knows_the_file_of_is_not_the_users() -> None:
    told = name_frames([frame("step", DYNAMO), frame("?", "?"), frame("train", "/srv/job/train.py")])
    users = users_code([(told.frames, 1.0)])
    assert [users.has(each.file) for each in told.frames] == [True, False, False]
    assert not users.has(LEFT_OUT.file)
