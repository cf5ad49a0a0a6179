"""The verdict in one sentence for who does not know the words, with its price."""

from __future__ import annotations

from rankscope.diagnose import budgets
from rankscope.diagnose.report.words import WORDS, count_of, file_of, place_of, subject
from rankscope.diagnose.text import clean, seconds
from rankscope.diagnose.verdict.contract import ASLEEP, Suspect, Verdict, process_text

# (component, cause) → what is wrong with it. {function}, {instance}, {other}: which one, or what follows the bar where nobody knows.
# What begins with ^ says itself who it is.
CAUSES_IN_WORDS = {
    ("gpu", "throttled-thermal"): "{instance|the GPU} runs slower because it is too hot",
    ("gpu", "throttled-power"): "{instance|the GPU} runs slower because its power is capped",
    ("gpu", "clock-low"): "{instance|the GPU} runs at a lower clock than its peers",
    ("gpu", "ecc-errors"): "{instance|the GPU} has memory errors",
    ("gpu", "xid"): "{instance|the GPU} reported a critical error (Xid)",
    ("gpu", "lost"): "{instance|the GPU} has fallen off the bus",
    ("gpu", "contended"): "{other|somebody else} uses {instance|the GPU} as well",
    ("gpu", "slow"): "{instance|the GPU} computes more slowly than its peers",
    ("nvlink", "down"): "NVLinks of {instance|a GPU} are down",
    ("nvlink", "errors"): "NVLinks of {instance|a GPU} have errors",
    ("nvlink", "slow"): "NVLinks of {instance|a GPU} are slower than the others",
    ("pcie", "link-degraded"): "the PCIe link {instance|} runs below what it can do",
    ("pcie", "errors"): "the PCIe link {instance|} has errors",
    ("pcie", "slow"): "the PCIe link {instance|} is slower than the others",
    ("nic", "down"): "the network port {instance|} is down",
    ("nic", "speed-degraded"): "the network port {instance|} runs below its speed",
    ("nic", "errors"): "the network port {instance|} has errors",
    ("nic", "slow"): "the network port {instance|} is slower than the others",
    ("network", "slow-link"): "the network at {instance|its end} is slower than between the others",
    ("network", "loss"): "the network at {instance|its end} loses packets",
    ("cpu", "contended"): "{instance|another program} takes its CPU",
    ("cpu", "quota"): "a CPU quota holds it back",
    ("cpu", "affinity"): "it may run on too few CPUs",
    ("cpu", "irq"): "interrupts take its CPU",
    ("cpu", "steal"): "the hypervisor takes its CPU away",
    ("cpu", "clock-low"): "its CPU runs at a lower clock than its peers'",
    ("cpu", "numa-remote"): "its memory is on another socket",
    ("memory", "reclaim"): "it waits for memory that the kernel has to free first",
    ("memory", "swap"): "its memory is swapped out",
    ("memory", "oom-kill"): "the kernel killed a process for want of memory",
    ("memory", "page-faults"): "it takes new memory again and again",
    ("storage", "slow-read"): "reading from {instance|files} is slow",
    ("storage", "slow-write"): "writing to {instance|files} is slow",
    ("storage", "stalled"): "{instance|a file system} does not answer",
    ("python", "slow-function"): "{function|its Python code} takes longer there than on its peers",
    ("python", "gc"): "Python's garbage collection stops it{function|}",
    ("python", "gil"): "another thread holds Python's lock (the GIL){function|}",
    ("python", "lock"): "{function|it} waits for a lock",
    ("python", "dataloader"): "its data comes late{function|}",
    ("python", "blocking-call"): "{function|its Python code} waits for another thread, process or connection",
    ("process", "stopped"): "the process was stopped",
    ("process", "exited"): "the process has ended",
    ("process", "deadlock"): "{function|it} waits for a lock that is never given free",
    ("process", "missing-collective"): "it does not come to the collective in which the others wait{function|}",
    ("process", "spinning"): "{function|it} runs without getting on",
    ("workload", "stage-imbalance"): "its part of the work is larger than the others', by design",
    ("workload", "data-imbalance"): "all that it does takes longer, as with more input than its peers have",
    ("workload", "slow-everywhere"): "it became slower{function|}",
}
_OF_ALL = {  # where all ranks have it, at once or in turn
    ("python", "slow-function"): "^now on one rank, now on another, {function|Python code} takes long",
    ("python", "blocking-call"): "^now on one rank, now on another, {function|Python code} sleeps",
    ("python", "gc"): "^Python's garbage collection stops now one rank, now another{function|}",
    ("workload", "data-imbalance"): "^the work is uneven: now one rank has more, now another",
    ("workload", "slow-everywhere"): "^all ranks became slower{function|}",
}
_SLEEPS = "{function|its Python code} sleeps"
_PREFIXED = {
    ("python", "dataloader"): ": the loader's time goes into {}",
    **dict.fromkeys([("python", "gc"), ("python", "gil"), ("process", "missing-collective")], ", in {}"),
    ("workload", "slow-everywhere"): ", in {}",
}
_OF_MANY = (
    ("{function|it}", "{function|one of them}"), ("it waits", "they wait"), ("it takes", "they take"), ("it may", "they may"),
    ("it does", "they do"), ("process was", "processes were"), ("process has", "processes have"), ("stops it", "stops them"),
    ("holds it", "holds them"), ("its ", "their "),
)  # fmt: skip


def sentence_of(verdict: Verdict) -> str:
    """Who, what, what it costs; or that nobody is at fault, or why that cannot be told."""
    if verdict.suspects:
        return accusation_of(verdict.suspects[0], verdict.guessed)
    count = count_of(verdict)
    if verdict.status == "healthy":
        p50 = verdict.step_seconds.p50
        how = f" of {seconds(p50)}" if p50 else ""
        return f"Nobody stands out: {count}, {verdict.steps} steps{how}."
    if verdict.status == "hang":
        return f"The job stands still: {count} make no progress, and none of them stands out."
    return f"This cannot be judged: {clean(verdict.notes[0].text, budgets.NOTE_MOST) if verdict.notes else 'too little was seen'}."


def accusation_of(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    """'Rank 3 on node-0: augment (train.py:56) takes longer there than on its peers, which costs 0.1 s of each 0.3 s step (33 %).'"""
    template = _template(suspect)
    what = " ".join(_filled(template.removeprefix("^"), suspect).split())
    who = "" if template.startswith("^") else _who(suspect, guessed)
    whole = f"{who}: {what}" if who else what
    return f"{whole[:1].upper()}{whole[1:]}{_price(suspect)}."


def _who(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    if suspect.scope == "all" and len(suspect.ranks) > 1:
        return "both ranks" if len(suspect.ranks) == 2 else f"all {len(suspect.ranks)} ranks"
    return subject(suspect, guessed)


def _template(suspect: Suspect) -> str:
    code = suspect.component, suspect.cause
    if suspect.scope == "all" and code in _OF_ALL:
        return _OF_ALL[code]
    template = CAUSES_IN_WORDS[code]
    if suspect.component == "python" and any(evidence.value == ASLEEP for evidence in suspect.evidence):
        template = _SLEEPS
    for one, many in _OF_MANY if len(suspect.ranks) > 1 else ():
        template = template.replace(one, many)
    return template


def _filled(template: str, suspect: Suspect) -> str:
    function = place_of(suspect.function) if suspect.function is not None else ""
    begins = _PREFIXED.get((suspect.component, suspect.cause))
    if function and begins:
        function = begins.replace("{}", function)
    instance, other = clean(suspect.instance, 80), ""
    if (suspect.component, suspect.cause) == ("gpu", "contended") and suspect.instances:
        first = suspect.instances[0]
        instance, other = clean(first.name, 80), clean(process_text(first.comm, first.pid) if first.comm else "", 80)
    if suspect.component == "storage" and suspect.function is not None and suspect.function.file and instance:
        instance += f" ({file_of(suspect.function)})"
    for word, said in (("function", function), ("instance", instance), ("other", other)):
        begin, found, rest = template.partition("{" + word + "|")
        if found:
            otherwise, _, rest = rest.partition("}")
            template = f"{begin}{said or otherwise}{rest}"
    return template


def _price(suspect: Suspect) -> str:
    if suspect.lost_percent >= 100:
        return f", and no step has ended for {seconds(suspect.lost_seconds_per_step)}"
    if suspect.lost_percent < 0.05:
        return "; hidden behind the stalls of others for now"
    step_s = suspect.lost_seconds_per_step / max(suspect.lost_percent / 100, 1e-9)
    lost = seconds(suspect.lost_seconds_per_step)
    return f", which costs {lost} of each {seconds(step_s)} step ({suspect.lost_percent:.0f} %)"


def price_of(verdict: Verdict) -> str:
    """What all suspects cost together, as ranks that stand idle; '' where nobody is accused."""
    ranks = len(verdict.ranks)
    if not verdict.suspects or not ranks:
        return ""
    lost = min(sum(max(suspect.lost_percent, 0.0) for suspect in verdict.suspects), 100.0)
    if lost >= 100:
        return f"No rank makes progress: {ranks} ranks stand still." if ranks > 1 else "The rank stands still."
    if lost < 0.05:
        return ""
    idle = ranks * lost / 100
    together = "Together the suspects cost" if len(verdict.suspects) > 1 else "That is"
    of = f"{together} as much as {idle:.2g} of {ranks} ranks standing idle all the time"
    return clean(f"{of}: {lost:.0f} % of the job.", WORDS)
