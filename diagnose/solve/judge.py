"""From windows to one verdict: the order in which the rules of DESIGN.md are applied.

1. Does the job stand still? (hang.py)                    4. Which function, which component, why? (attribute.py, causes/)
2. Are there steps enough, ranks enough to judge by?      5. Is the transfer long because of a link? (causes/network.py)
3. Which ranks are odd, and do others wait for them?      6. And against earlier windows? (baseline.py)

With z >= 3 a rank is a suspect if a counter convicts it of half of its excess (z >= 1: the kernel's count of a CPU quota), or if it
hides a floor of what an odd one costs (one slow on average, one by jerks); and what a heavy stage hides counts as lost. With 16 ranks
or more some other one stalls in each step, and no step is shorter without the suspect: there who is slower in 90 % of the steps is
accused (from 65 ranks on also who is odd by a function).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.gather import gather
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.pipelines import find_pipelines
from rankscope.diagnose.fleet.roles import blind, roles
from rankscope.diagnose.hypotheses.hang.standstill import find_hang
from rankscope.diagnose.hypotheses.job.heavy_stage import heavy_stages
from rankscope.diagnose.hypotheses.job.majority import majority_suspects
from rankscope.diagnose.hypotheses.job.moving_work import moving_imbalance
from rankscope.diagnose.hypotheses.job.own_past import past_suspects
from rankscope.diagnose.hypotheses.job.quotas_of_all import throttled_together
from rankscope.diagnose.hypotheses.job.slow_everywhere import slower_everywhere
from rankscope.diagnose.hypotheses.link.pipelines import slow_links_of_pipelines
from rankscope.diagnose.hypotheses.link.suspects import suspect_links
from rankscope.diagnose.hypotheses.rank.cpu import throttled
from rankscope.diagnose.hypotheses.rank.process import pauses
from rankscope.diagnose.hypotheses.rank.suspects import convicted, episode_suspects, pause_suspect, rank_suspects
from rankscope.diagnose.model import slots
from rankscope.diagnose.model.episodes import Episodes, find_episodes
from rankscope.diagnose.model.excess import Differences, differences, odd_ones
from rankscope.diagnose.model.function_tests import odd_by_function
from rankscope.diagnose.model.replay import gain
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.model.waiting import waited_for
from rankscope.diagnose.past.auto_baseline import choose
from rankscope.diagnose.past.baseline import Reference, code_changed, read_baseline
from rankscope.diagnose.past.history import History
from rankscope.diagnose.solve import idle_counters
from rankscope.diagnose.solve.calibration import calibrate
from rankscope.diagnose.solve.rhythm_notes import rhythm_notes
from rankscope.diagnose.solve.second_of_three import second_of_three
from rankscope.diagnose.stats.onset import find_onset
from rankscope.diagnose.stats.rhythm import find_drift, find_growth
from rankscope.diagnose.stats.robust import nan_median, peers_median, trimmed_mean
from rankscope.diagnose.text import rank_list, seconds
from rankscope.diagnose.verdict.contract import AGAINST, Evidence, StepSeconds, Suspect, Verdict
from rankscope.observer.window.folder import Window
from rankscope.probes.arrays import Bools, Floats, Ints

_DESIGNED = ("stage-imbalance", "data-imbalance")  # nobody's fault
NOBODY = "no rank stands out"
_UNTIMED = "where these wait meanwhile was not timed"


def diagnose(
    windows: Sequence[Window], baseline: Sequence[Window] = (), job: str | None = None, history: History | None = None
) -> Verdict:
    """Judge one job. `history`: look for a baseline in it, unless one is given.

    Raises BadData (foreign job or baseline) and NoRanks; everything else becomes a verdict.
    """
    fleet = gather(windows, job)
    if baseline:
        return judge(fleet, read_baseline(baseline, fleet.job))
    if history is None:
        return judge(fleet)
    earlier = choose(history, windows, fleet.job)
    reference = read_baseline(earlier.windows, fleet.job, "history") if earlier.windows else None
    return judge(replace(fleet, notes=(*earlier.notes, *fleet.notes)), reference)


def judge(fleet: Fleet, reference: Reference | None = None) -> Verdict:
    """The verdict on one fleet, with earlier windows where there are any."""
    steps = fleet.steps
    per_step = nan_median(steps.seconds, 0)
    step_s = float(np.nanmedian(per_step)) if np.isfinite(per_step).any() else None
    draft = _draft(fleet, reference, per_step)
    hang = find_hang(fleet, step_s)
    if hang is not None:
        return replace(
            draft,
            status="hang",
            suspects=hang.suspects,
            notes=(*draft.notes, *hang.notes, *idle_counters.events(fleet, hang.suspects)),
        )
    refusal = _cannot_judge(fleet, reference, step_s)
    if refusal or step_s is None:
        return replace(
            draft,
            status="unknown",
            notes=(refusal or "no step was found", *draft.notes, *idle_counters.notes(fleet, ())),
        )
    return _judge_steps(fleet, reference, per_step, draft)


def _draft(fleet: Fleet, reference: Reference | None, per_step: Floats) -> Verdict:
    finite = per_step[np.isfinite(per_step)]
    notes = list(fleet.notes)
    if reference is not None:
        notes.extend(reference.notes)
        if code_changed(reference, fleet):
            notes.append(
                "the baseline ran other code: most of its time was in functions that are not here now; "
                "a slow-down against it may be the change itself"
            )
    gone = [int(n) for n, state in zip(fleet.ranks.number, fleet.ranks.state, strict=True) if state == "exited"]
    if gone:
        notes.append(f"{rank_list(tuple(gone))} ended in the window")
    if fleet.ranks.lost_events.sum() > 0:
        notes.append(f"{int(fleet.ranks.lost_events.sum())} events were lost between kernel and observer")
    return Verdict(
        status="unknown",
        job=fleet.job,
        hosts=fleet.hosts,
        ranks=tuple(int(number) for number in fleet.ranks.number),
        start=fleet.start,
        end=fleet.start + fleet.seconds,
        baseline=reference.about if reference else None,
        step_seconds=StepSeconds(
            float(np.median(finite)) if len(finite) else None,
            float(np.percentile(finite, 99)) if len(finite) else None,
            reference.step_p50 if reference else None,
        ),
        slowdown_percent=0.0,
        suspects=(),
        notes=tuple(notes),
        steps=len(finite),
    )


def _cannot_judge(fleet: Fleet, reference: Reference | None, step_s: float | None) -> str | None:
    """The reason why there is no judging, if there is one."""
    count = int(np.median(np.isfinite(fleet.steps.seconds).sum(axis=1))) if fleet.steps.count else 0
    more = _more(fleet)
    stepping = int(np.isfinite(fleet.steps.seconds).any(axis=1).sum()) if fleet.steps.count else 0
    if step_s is None or stepping == 0:
        return f"no complete step was found: {more}"
    if count == 0:
        return f"only {stepping} of {len(fleet.ranks)} ranks show complete steps: {more}"
    if count < limits.STEPS_LEAST:
        return f"only {count} complete steps (of {seconds(step_s)}): {more}"
    measured = int(np.isfinite(fleet.steps.own_s).any(axis=1).sum())
    if measured < 2 and reference is None:
        return "only one rank was observed: it has no peers; give earlier windows with --baseline"
    return None


def _short_of_steps(fleet: Fleet) -> tuple[str, ...]:
    """Ranks with less than half of the steps that others have: what they do in the rest is compared with nobody's."""
    counts = np.isfinite(fleet.steps.seconds).sum(axis=1)
    most = int(counts.max(initial=0))
    few = tuple(int(number) for number in fleet.ranks.number[counts < 0.5 * most])
    return (
        (f"{rank_list(few)} had less than half of the {most} steps of others, and could not be fully compared",)
        if few
        else ()
    )


def _more(fleet: Fleet) -> str:
    """What to do about too few steps."""
    return "give more steps" if fleet.timed else "record a longer window (--window)"


def _judge_steps(fleet: Fleet, reference: Reference | None, per_step: Floats, draft: Verdict) -> Verdict:
    notes = [*draft.notes, *_short_of_steps(fleet)]
    scene = _scene(fleet, per_step, notes)
    scene, odd, gained = _odd_ranks(fleet, scene, notes)
    suspects = rank_suspects(fleet, scene, odd, gained, notes)
    paused = [pause for pause in pauses(fleet) if pause.row not in set(odd.tolist())]
    suspects += [pause_suspect(fleet, scene, pause) for pause in paused]
    skip = np.append(odd, np.array([pause.row for pause in paused], dtype=np.int64))
    suspects += episode_suspects(fleet, scene, _rare(fleet, scene, skip), odd, notes)
    suspects, designed = _by_design(suspects, fleet, scene, reference)
    links = suspect_links(fleet, scene, gained, suspects)
    links += slow_links_of_pipelines(fleet, scene) if not suspects else []
    past = past_suspects(fleet, scene, reference, notes) if reference is not None and not suspects else []
    grown = {rank for suspect in past for rank in suspect.ranks}  # a stage that was lighter is not heavy by design
    stages = [stage for stage in heavy_stages(fleet, scene, odd) if not set(stage.ranks) <= grown]
    suspects = [*suspects, *links, *past, *stages]
    if all(suspect.cause in (*_DESIGNED, "quota") for suspect in suspects):
        suspects = _with_quotas(suspects, throttled_together(fleet, scene))
    if not suspects and not len(odd) and (moving := moving_imbalance(fleet, scene, notes)) is not None:
        suspects = [moving]
    if reference is not None and all(suspect.cause in _DESIGNED for suspect in suspects):
        slower = majority_suspects(fleet, scene, reference, notes) or slower_everywhere(
            fleet, scene, reference, draft.ranks
        )
        if slower and suspects:
            notes.append(
                f"besides, an imbalance costs {seconds(suspects[0].lost_seconds_per_step)} per step: {suspects[0].action}"
            )
        suspects = slower or suspects
    suspects = [replace(suspect, confidence=calibrate(suspect.confidence)) for suspect in suspects]
    # What is somebody's fault comes first, whatever is heavier by design.
    suspects.sort(key=lambda suspect: (suspect.cause in _DESIGNED, -suspect.lost_seconds_per_step))
    lost = sum(suspect.lost_seconds_per_step for suspect in suspects)
    slowdown = 100 * lost / max(scene.step_s - lost, 1e-9) if suspects else 0.0
    if reference is not None:
        slowdown = max(slowdown, 100 * (scene.step_s / reference.step_p50 - 1))
    status = "imbalance" if all(suspect.cause in _DESIGNED for suspect in suspects) else "fault"
    if not suspects:
        status = _nobody(fleet, reference, scene, per_step, bool(len(odd)), notes)
    notes.extend(idle_counters.notes(fleet, suspects))
    if designed:
        notes.append(f"{rank_list(designed)}: slower than the peers, but so already in the baseline")
    return replace(
        draft,
        status=status,
        suspects=tuple(suspects),
        slowdown_percent=max(slowdown, 0.0),
        notes=tuple(notes),
    )


def _with_quotas(suspects: list[Suspect], together: Suspect | None) -> list[Suspect]:
    """The quotas of most ranks in place of one rank's, where they cost clearly more."""
    single_s = sum(suspect.lost_seconds_per_step for suspect in suspects if suspect.cause == "quota")
    if together is None or together.lost_seconds_per_step < limits.QUOTAS_TOGETHER * single_s:
        return suspects
    return [together, *(suspect for suspect in suspects if suspect.cause != "quota")]


def _rare(fleet: Fleet, scene: Scene, skip: Ints) -> list[Episodes]:
    """Of the part that is judged, and of the whole window: what is rare may be older than a small change of level."""
    found: dict[int, Episodes] = {}
    parts = [scene.own] if scene.own.shape == fleet.steps.own_s.shape else [scene.own, fleet.steps.own_s]
    for own in parts:
        for each in find_episodes(own, scene.roles, scene.step_s, scene.differences.floor_s, skip):
            found.setdefault(each.row, each)
    return list(found.values())


def _nobody(
    fleet: Fleet, reference: Reference | None, scene: Scene, per_step: Floats, acquitted: bool, notes: list[str]
) -> str:
    """The status where nobody is accused; the reason comes first in the notes. `acquitted`: a rank was odd nevertheless."""
    if reason := _too_uncertain(fleet, scene):
        notes.insert(0, reason)
    elif not scene.differences.peer_count.any() and reference is None:
        who = "earlier steps" if fleet.timed else "earlier windows (--baseline)"
        notes.insert(0, f"every rank has a role of its own: nobody has peers; only {who} could tell")
    elif reference is None and (change := find_growth(per_step[np.isfinite(per_step)])) is not None:
        why = "no function tells why" if fleet.timed else "only an earlier window can tell why (--baseline)"
        longer = f"from {seconds(change.before_s)} to {seconds(change.after_s)}"
        notes.insert(0, f"steps became longer, {longer}, and {NOBODY}: {why}")
    elif acquitted or any(_UNTIMED in note for note in notes):
        notes.sort(key=lambda note: "not accused" not in note)
    else:
        return "healthy"
    return "unknown"


def _scene(fleet: Fleet, per_step: Floats, notes: list[str]) -> Scene:
    steps = fleet.steps
    known: Bools = np.isfinite(per_step)
    onset = find_onset(per_step[known])
    drift = find_drift(per_step[known], onset)
    notes += rhythm_notes(fleet.ranks.number, steps.own_s, per_step, drift)
    first = 0
    if onset is not None:
        onset = replace(onset, column=int(np.flatnonzero(known)[onset.column]))
        longer = onset.after_s > onset.before_s
        first = onset.column if longer else 0
        if drift is None:
            notes.append(
                f"steps became {'longer' if longer else 'shorter'} in the window, from {seconds(onset.before_s)} to "
                f"{seconds(onset.after_s)}{': the later part is judged' if longer else ''}"
            )
        else:
            onset = None  # no moment at which it began
    own, wait = steps.own_s[:, first:], steps.wait_s[:, first:]
    role = roles(fleet)
    if (unseen := blind(fleet)).any():
        notes.append(
            f"{rank_list(tuple(int(number) for number in fleet.ranks.number[unseen]))}: the GPUs of their hosts are not seen (NVML); "
            "compared with each other only"
        )
    step_s = float(trimmed_mean(per_step[known & (np.arange(len(per_step)) >= first)][None, :])[0])
    least_s = 0.0 if fleet.timed else limits.EFFECT_SECONDS
    growing = drift is not None and drift.end_s > drift.begin_s

    def compare(rows: Ints) -> Differences:
        return differences(steps.own_s[rows], np.zeros_like(rows), step_s, first, least_s, growing)

    found = differences(steps.own_s, role, step_s, first, least_s, growing)
    pipelines = fleet.pipelines if fleet.timed else find_pipelines(fleet, role)
    pipelines = None if pipelines is None else pipelines.since(first)
    stays = None if fleet.slots is None else fleet.slots.since(first)
    least = slots.least_stay(wait, pipelines, stays)
    return Scene(own, wait, role, step_s, found, compare, onset, per_step[first:] - least, pipelines, stays)


def _odd_ranks(fleet: Fleet, scene: Scene, notes: list[str]) -> tuple[Scene, Ints, float]:
    """The scene, with the differences that count in the end; rows of the suspects; the seconds per step that they cost together."""
    untimed = fleet.timed and not np.nansum(scene.wait) > 0  # nobody timed the waiting

    def waited_by(rows: Ints, found: Differences) -> Floats:
        return found.excess_s if untimed else waited_for(scene.wait[rows], np.zeros_like(rows))

    found = scene.differences
    by_function = odd_by_function(fleet, scene.roles, found, scene.step_s)
    odd = odd_ones(found) | by_function
    waited = found.excess_s if untimed else waited_for(scene.wait, scene.roles)
    free = odd & ~(waited >= 0.5 * found.excess_s)
    untimed_s = _untimed(scene) if fleet.timed and free.any() else np.zeros(len(odd))
    for row in np.flatnonzero(free):
        partly = untimed_s[row] >= 0.5 * found.excess_s[row]
        notes.append(
            f"rank {int(fleet.ranks.number[row])} is busy longer than its peers, but "
            f"{_UNTIMED if partly else 'they do not wait for it'}: not accused"
        )
        odd[row] = False
    late = ~odd & (waited >= 0.5 * found.excess_s)
    nearly = odd_ones(found, limits.Z_BESIDE) & late
    ordered = throttled(fleet) & late & (found.z >= limits.Z_THROTTLED) & (found.excess_s >= found.floor_s)
    odd |= convicted(fleet, scene, nearly, ordered, odd)
    found, odd = second_of_three(found, odd, scene.roles, scene.compare, waited_by)
    scene = replace(scene, differences=found)
    rows: Ints = np.flatnonzero(odd)
    gained = _gained(scene, rows)
    if len(rows):
        # One that is slower on average but by jerks may hide what these cost: beside them less evidence will do.
        more: Ints = np.flatnonzero(odd | nearly)
        together = _gained(scene, more) if len(more) > len(rows) else gained
        if together - gained >= float(found.floor_s[more].min()):
            rows, gained = more, together
    floor_s = float(found.floor_s[rows].min()) if len(rows) else 0.0
    if gained < floor_s and gained + _hidden(fleet, scene, rows) < floor_s:
        sure = (found.slower_share >= limits.NEARLY_ALWAYS) | (by_function & (len(scene.own) > limits.PEERS_EXACT))
        always: Ints = rows[sure[rows]]
        if len(scene.own) >= limits.FLEET and len(always):
            notes.append(
                f"the step is hardly shorter without the suspects today: of {len(scene.own)} ranks some other one stalls in each"
            )
            return scene, always, _gained(scene, always)
        slower = rank_list(tuple(int(number) for number in fleet.ranks.number[rows]))
        by = f"{'by up to ' if len(rows) > 1 else 'by '}{seconds(float(found.excess_s[rows].max()))}"
        notes.append(
            f"slower than the peers, {by} per step: {slower}; without that a step would be only {seconds(gained)} shorter, "
            "because others are as late: not accused"
        )
        return scene, np.empty(0, dtype=np.int64), 0.0
    return scene, rows, gained


def _untimed(scene: Scene) -> Floats:
    """Per rank, how much longer its own time and its waiting are together than its peers': what nobody timed of these."""
    whole = scene.own + scene.wait
    return trimmed_mean(whole - peers_median(whole, scene.roles))


def _hidden(fleet: Fleet, scene: Scene, rows: Ints) -> float:
    """Seconds per step that a heavy stage costs and these ranks hide: without them it alone would be waited for. 0 where nobody
    says the roles: who is a peer is not sure enough for that."""
    if not all(fleet.ranks.role):
        return 0.0
    alone = sum(stage.lost_seconds_per_step for stage in heavy_stages(fleet, scene, rows[:0]))
    without_them = sum(stage.lost_seconds_per_step for stage in heavy_stages(fleet, scene, rows))
    return max(without_them - alone, 0.0)


def _gained(scene: Scene, rows: Ints) -> float:
    """Seconds per step that the job were shorter without these ranks' excess."""
    gained = gain(scene.own, scene.roles, rows, scene.pipelines, scene.busy_s)
    if scene.slots is not None and scene.pipelines is None:
        gained = max(gained, slots.gain(scene.slots, scene.roles, rows))
    return gained


def _too_uncertain(fleet: Fleet, scene: Scene) -> str | None:
    """Something large that cannot be proven with so few or so noisy steps."""
    found = scene.differences
    count = int(np.median(np.isfinite(scene.own).sum(axis=1)))
    big = found.excess_s >= limits.UNKNOWN_SHARE * scene.step_s
    if count < limits.STEPS_FEW and bool(big.any()):
        worst = int(np.nanargmax(np.nan_to_num(found.excess_s)))
        return (
            f"one rank seems {seconds(float(found.excess_s[worst]))} per step slower than its peers, but {count} steps "
            f"do not prove it: {_more(fleet)}"
        )
    return None


def _by_design(
    suspects: list[Suspect], fleet: Fleet, scene: Scene, reference: Reference | None
) -> tuple[list[Suspect], tuple[int, ...]]:
    """An excess that was there in the baseline is an imbalance: nobody's fault."""
    if reference is None:
        return suspects, ()
    now = dict(zip(fleet.ranks.number.tolist(), scene.differences.excess_s.tolist(), strict=True))
    designed: list[int] = []
    result = []
    for suspect in suspects:
        before = [reference.excess.get(rank, 0.0) >= limits.SAME_AS_BASELINE * now[rank] for rank in suspect.ranks]
        if all(before):
            designed.extend(suspect.ranks)
            suspect = replace(  # noqa: PLW2901
                suspect, component="workload", cause="data-imbalance",
                confidence=min(suspect.confidence, 0.8),
                action="It was so in the baseline too: balance the work of the ranks, or leave it.",
            )  # fmt: skip
        elif any(earlier := [reference.excess.get(rank, 0.0) for rank in suspect.ranks]):
            known, all_now = sum(earlier), sum(now[rank] for rank in suspect.ranks)
            if known >= limits.PARTLY_BEFORE * all_now:
                there = Evidence(f"{AGAINST}baseline", "excess that was there before", known, 0.0, "s/step")
                suspect = replace(suspect, evidence=(*suspect.evidence, there))  # noqa: PLW2901
        result.append(suspect)
    return result, tuple(sorted(set(designed)))
