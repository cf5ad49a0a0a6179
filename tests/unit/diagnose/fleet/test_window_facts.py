"""What the manifests of windows say reaches the judgement: how often was sampled, and what a host lost, once."""

from __future__ import annotations

import math
from dataclasses import replace

from builders import Job, build, slow_python

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.evidence import varying
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Loss


def saying(window: Window, **changed: object) -> Window:
    return replace(window, manifest=replace(window.manifest, **changed))  # type: ignore[arg-type]


def test_what_a_host_lost_counts_once_however_many_ranks_it_has() -> None:
    windows = build(Job(ranks=8, hosts=2))
    lost = [saying(window, losses=(Loss("bpf", "ring_full", 7),)) for window in windows]
    assert gather(lost).lost_events == 14
    assert any("14 events were lost" in str(note) for note in diagnose(lost).notes)
    assert gather(windows).lost_events == 0


def test_other_losses_are_no_lost_events() -> None:
    (window,) = build(Job())
    assert gather([saying(window, losses=(Loss("bpf", "walk_failed", 7),))]).lost_events == 0


def test_a_few_stacks_that_could_not_be_read_are_no_news_and_many_are() -> None:
    """Of 99 samples a second in 20 s a hundredth is 20: the kernel counts them for helper threads as well."""
    (window,) = build(Job(window_s=20.0))
    for count, told in ((19, False), (20, True), (500, True)):
        notes = gather(
            [saying(window, losses=(Loss("bpf", "walk_failed", count),), sampling_hz=99.0, seconds=20.0)]
        ).notes
        assert any("Python stacks could not be read" in str(note) for note in notes) == told


def test_the_rate_of_the_samples_is_the_windows_own_and_of_several_the_lowest() -> None:
    first, second = build(Job(ranks=8, hosts=2))
    fleet = gather([saying(first, sampling_hz=499.0), saying(second, sampling_hz=199.0)])
    assert math.isclose(fleet.sampling_s, 1 / 199)
    assert math.isclose(gather([first, second]).sampling_s, 1 / 99)


def test_what_few_samples_add_to_the_variance_is_taken_off() -> None:
    # GIVEN functions whose times vary by less than one sample a second would make them vary, and a sleep, which is timed
    (window,) = build(slow_python(3, 0.08))
    often, seldom = (varying.most(gather([saying(window, sampling_hz=hz)])) for hz in (1e5, 1.0))
    assert often is not None and often.of_variance < 1.0
    # THEN with one sample a second all of the variance that is left is the sleep's
    assert seldom is not None and (seldom.function.name, seldom.of_variance) == ("device_wait", 1.0)
