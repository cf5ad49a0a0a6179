/* The physics: what runs on a GPU becomes sums of activity, bytes, energy and errors. */
#define _GNU_SOURCE
#include "gpusim.h"

#include <string.h>

/* Share of a flapping port's period in which it is down. */
#define FLAP_DOWN 0.15
/* What a PCI Express link carries of its raw rate. */
#define PCIE_EFFICIENCY 0.85
#define FOREIGN_SM 0.9

/* Share of the highest clock that the power cap leaves to a computing GPU. */
static double capped(const struct gs_gpu *gpu)
{
    double wants = GS_POWER_SPAN_W * (0.7 * 0.9 + 0.3 * 0.5) * gpu->set.power_w_factor;
    double share = (gpu->set.power_cap_w - GS_POWER_IDLE_W) / (wants > 1 ? wants : 1);
    return share < 0.1 ? 0.1 : share > 1 ? 1 : share;
}

double gs_clock_hz(const struct gs_gpu *gpu)
{
    double clock = gpu->set.clock_hz;
    if (gpu->set.clock_limit_hz < clock)
        clock = gpu->set.clock_limit_hz;
    double cap = capped(gpu) * GS_CLOCK_MAX_HZ;
    if (cap < clock)
        clock = cap;
    return clock < 1e6 ? 1e6 : clock;
}

static int has_context(const struct gs_gpu *gpu)
{
    for (int row = 0; row < GS_PROCESSES; row++)
        if (gpu->processes[row].claimed)
            return 1;
    return gpu->set.foreign_pid > 0;
}

uint64_t gs_reasons(const struct gs_gpu *gpu)
{
    uint64_t reasons = (uint64_t)gpu->set.throttle_reasons;
    double clock = gs_clock_hz(gpu);
    if (!has_context(gpu) || gpu->advanced_ns - gpu->kernel_until_ns > 500000000ll)
        return reasons | GS_REASON_IDLE;
    if (capped(gpu) < 1 && clock >= capped(gpu) * GS_CLOCK_MAX_HZ)
        reasons |= GS_REASON_POWER_CAP;
    if (gpu->set.clock_limit_hz < GS_CLOCK_MAX_HZ && clock >= gpu->set.clock_limit_hz)
        reasons |= GS_REASON_APPLICATION_CLOCKS;
    return reasons;
}

double gs_kernel_rate(const struct gs_gpu *gpu)
{
    double rate = gs_clock_hz(gpu) / GS_CLOCK_MAX_HZ * gpu->set.speed * (1 - gpu->set.foreign_share);
    return rate < 0.001 ? 0.001 : rate;
}

double gs_pcie_rate(const struct gs_gpu *gpu)
{
    static const double per_lane[] = {0.25e9, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
    int generation = (int)gpu->set.pcie_gen;
    generation = generation < 1 ? 1 : generation > 6 ? 6 : generation;
    return per_lane[generation] * (gpu->set.pcie_width < 1 ? 1 : gpu->set.pcie_width) * PCIE_EFFICIENCY * gpu->set.pcie_rate_factor;
}

static int active_links(const struct gs_gpu *gpu)
{
    return __builtin_popcountll((uint64_t)gpu->set.nvlink_active & ((1ull << GS_LINKS) - 1));
}

double gs_nvlink_rate(const struct gs_gpu *gpu)
{
    int links = active_links(gpu);
    double rate = links * GS_NVLINK_RATE * gpu->set.nvlink_rate_factor;
    double pcie = gs_pcie_rate(gpu); /* the way that is left without NVLink */
    return links && rate > 1e6 ? rate : links ? 1e6 : pcie;
}

double gs_nic_speed(const struct gs_gpu *gpu)
{
    return gpu->nic_set.speed_hz * gpu->nic_set.width / 4;
}

/* What the path through NIC `index` carries: NIC, its GPU's PCIe link, the link between the hosts (which is the whole rail's). */
double gs_nic_rate(const struct gs_state *state, const struct gs_comm *comm, int index)
{
    const struct gs_gpu *gpu = &state->gpu[index];
    double rate = gs_nic_speed(gpu) * gpu->nic_set.rate_factor;
    double link = gpu->nic_set.link_rate_factor;
    for (uint32_t rank = 0; comm && rank < comm->size; rank++) {
        int other = comm->gpu[rank];
        if ((uint32_t)other % state->per_host == (uint32_t)index % state->per_host &&
            state->gpu[other].nic_set.link_rate_factor < link)
            link = state->gpu[other].nic_set.link_rate_factor;
    }
    rate *= link;
    if (gpu->nic_set.state < 0.5) /* its traffic shares another NIC */
        rate = gpu->nic_set.speed_hz / 2;
    double pcie = gs_pcie_rate(gpu);
    rate = rate < pcie ? rate : pcie;
    return rate < 1e5 ? 1e5 : rate;
}

int gs_nic_is_up(const struct gs_gpu *gpu, int64_t now)
{
    if (gpu->nic_set.state < 0.5)
        return 0;
    if (gpu->nic_set.flapping_hz <= 0)
        return 1;
    double periods = now / 1e9 * gpu->nic_set.flapping_hz;
    return periods - (int64_t)periods >= FLAP_DOWN;
}

/* The first instant from `time` on at which a port that comes and goes is up. */
int64_t gs_nic_up_from(const struct gs_gpu *gpu, int64_t time)
{
    double hz = gpu->nic_set.flapping_hz;
    if (hz <= 0 || gpu->nic_set.state < 0.5 || gs_nic_is_up(gpu, time))
        return time;
    return (int64_t)(((double)(int64_t)(time / 1e9 * hz) + FLAP_DOWN) / hz * 1e9) + 1;
}

/* Bytes of one link until `time`, of `per_step` bytes moved in the first `burst_ns` of each step. */
static double moved(const struct gs_flow *flow, double per_step, double burst_ns, int64_t time)
{
    double elapsed = (double)(time - flow->start_ns);
    if (elapsed <= 0 || per_step <= 0 || flow->step_ns <= 0)
        return 0;
    double steps = (double)(int64_t)(elapsed / flow->step_ns);
    if (steps >= flow->steps)
        return per_step * flow->steps;
    double part = burst_ns > 0 ? (elapsed - steps * flow->step_ns) / burst_ns : 1;
    return per_step * (steps + (part < 1 ? part : 1));
}

static void credit_flow(struct gs_gpu *gpu, const struct gs_slot *slot, int64_t from, int64_t to)
{
    const struct gs_flow *flow = &slot->flow;
    if (flow->pcie_tx > 0 || flow->pcie_rx > 0) {
        double share = (double)(to - from) / (double)(slot->end_ns - slot->start_ns);
        gpu->sums.pcie_tx_bytes += flow->pcie_tx * share;
        gpu->sums.pcie_rx_bytes += flow->pcie_rx * share;
    }
    if (!flow->steps)
        return;
#define GS_MOVED(which, burst) (moved(flow, flow->which, flow->burst, to) - moved(flow, flow->which, flow->burst, from))
    double to_peers = GS_MOVED(nvlink_tx, nvlink_burst_ns), from_peers = GS_MOVED(nvlink_rx, nvlink_burst_ns);
    if (active_links(gpu)) {
        gpu->sums.nvlink_tx_bytes += to_peers;
        gpu->sums.nvlink_rx_bytes += from_peers;
    } else { /* what should have gone over NVLink */
        gpu->sums.pcie_tx_bytes += to_peers;
        gpu->sums.pcie_rx_bytes += from_peers;
    }
    if (gpu->nic_set.state >= 0.5) {
        double tx = GS_MOVED(nic_tx, nic_burst_ns), rx = GS_MOVED(nic_rx, nic_burst_ns);
        gpu->nic_sums.tx_bytes += tx;
        gpu->nic_sums.rx_bytes += rx;
        gpu->sums.pcie_tx_bytes += tx; /* the NIC reads and writes the GPU's memory over PCIe */
        gpu->sums.pcie_rx_bytes += rx;
    }
}

/* Union of the kernels' intervals up to `time`, beyond what was credited before. Exact also for slots that were added late, since the
 * mark only moves through busy time. */
static double credit_union(struct gs_gpu *gpu, int64_t time)
{
    int order[GS_SLOTS], count = 0;
    for (int index = 0; index < GS_SLOTS; index++) {
        const struct gs_slot *slot = &gpu->slots[index];
        if (!slot->serial || !slot->profile.is_kernel || slot->start_ns >= time || slot->end_ns <= gpu->kernel_until_ns)
            continue;
        int at = count++;
        for (; at > 0 && gpu->slots[order[at - 1]].start_ns > slot->start_ns; at--)
            order[at] = order[at - 1];
        order[at] = index;
    }
    double busy = 0;
    for (int at = 0; at < count; at++) {
        const struct gs_slot *slot = &gpu->slots[order[at]];
        int64_t from = slot->start_ns > gpu->kernel_until_ns ? slot->start_ns : gpu->kernel_until_ns;
        int64_t to = slot->end_ns < time ? slot->end_ns : time;
        if (to > from) {
            busy += (to - from) / 1e9;
            gpu->kernel_until_ns = to;
        }
    }
    return busy;
}

/* Seconds of [from, to) in which kernels that fill the GPU run beside a collective's: its few SMs then add next to nothing. */
static double shaded(const struct gs_gpu *gpu, const struct gs_slot *slot, int64_t from, int64_t to)
{
    double seconds = 0;
    if (!slot->profile.is_kernel || slot->profile.sm > 0.5)
        return 0;
    for (int index = 0; index < GS_SLOTS; index++) {
        const struct gs_slot *other = &gpu->slots[index];
        if (!other->serial || other->profile.sm <= 0.5)
            continue;
        int64_t begin = other->start_ns > from ? other->start_ns : from, end = other->end_ns < to ? other->end_ns : to;
        seconds += end > begin ? (end - begin) / 1e9 : 0;
    }
    return seconds < (to - from) / 1e9 ? seconds : (to - from) / 1e9;
}

static void advance_to(struct gs_gpu *gpu, int64_t time)
{
    double seconds = (time - gpu->advanced_ns) / 1e9;
    if (seconds <= 0)
        return;
    struct gs_gpu_sums *sums = &gpu->sums;
    double foreign = gpu->set.foreign_share, own = 1 - foreign;
    double sm_before = sums->sm_s, dram_before = sums->dram_s;
    double busy = credit_union(gpu, time);
    sums->kernel_s += busy + (busy < seconds ? foreign * (seconds - busy) : 0);
    for (int index = 0; index < GS_SLOTS; index++) {
        struct gs_slot *slot = &gpu->slots[index];
        if (!slot->serial)
            continue;
        int64_t from = slot->credited_ns, to = slot->end_ns < time ? slot->end_ns : time;
        if (to > from) {
            double length = (to - from) / 1e9, sm = slot->profile.sm * own * (length - 0.9 * shaded(gpu, slot, from, to));
            sums->sm_s += sm;
            sums->tensor_s += slot->profile.tensor * own * length;
            sums->dram_s += slot->profile.dram * own * length;
            sums->occupancy_s += slot->profile.occupancy * own * length;
            gpu->processes[slot->owner].sm_s += sm;
            credit_flow(gpu, slot, from, to);
            slot->credited_ns = to;
        }
    }
    for (int index = 0; index < GS_SLOTS; index++)
        if (gpu->slots[index].serial && gpu->slots[index].end_ns <= time)
            gpu->slots[index].serial = 0;
    sums->sm_s += FOREIGN_SM * foreign * seconds;
    sums->dram_s += 0.5 * foreign * seconds;
    sums->foreign_s += FOREIGN_SM * foreign * seconds;
    double clock = gs_clock_hz(gpu) / GS_CLOCK_MAX_HZ;
    double energy = GS_POWER_IDLE_W * seconds + GS_POWER_SPAN_W * clock * gpu->set.power_w_factor *
                                                    (0.7 * (sums->sm_s - sm_before) + 0.3 * (sums->dram_s - dram_before));
    sums->energy_j += energy;
    double weight = seconds / (seconds + 5);
    gpu->smooth_power_w += weight * (energy / seconds - gpu->smooth_power_w);
    uint64_t reasons = gs_reasons(gpu);
    sums->power_limited_s += reasons & 0x84 ? seconds : 0;
    sums->thermal_limited_s += reasons & 0x60 ? seconds : 0;
    sums->ecc_corrected += gpu->set.ecc_corrected_hz * seconds;
    sums->nvlink_errors += gpu->set.nvlink_error_hz * seconds;
    sums->pcie_replays += gpu->set.pcie_replay_hz * seconds;
    gpu->nic_sums.symbol_errors += gpu->nic_set.symbol_error_hz * seconds;
    gpu->nic_sums.crc_errors += gpu->nic_set.crc_error_hz * seconds;
    gpu->nic_sums.link_downed += gpu->nic_set.flapping_hz * seconds;
    gpu->nic_sums.retransmits += gpu->nic_set.retransmit_hz * seconds;
    gpu->nic_sums.out_of_sequence += gpu->nic_set.out_of_sequence_hz * seconds;
    gpu->nic_sums.pause += gpu->nic_set.pause_hz * seconds;
    gpu->nic_sums.cnp += gpu->nic_set.cnp_hz * seconds;
    gpu->advanced_ns = time;
}

static void take_sample(struct gs_gpu *gpu)
{
    struct gs_sample *sample = &gpu->samples[gpu->samples_taken % GS_SAMPLES];
    double before = gpu->samples_taken ? gpu->samples[(gpu->samples_taken - 1) % GS_SAMPLES].sums.energy_j : 0;
    sample->time_ns = gpu->next_sample_ns;
    sample->sums = gpu->sums;
    sample->clock_hz = has_context(gpu) ? gs_clock_hz(gpu) : GS_CLOCK_IDLE_HZ;
    sample->power_w = (gpu->sums.energy_j - before) / (GS_SAMPLE_NS / 1e9);
    gpu->samples_taken++;
    for (int row = 0; row < GS_PROCESSES; row++) {
        struct gs_process *process = &gpu->processes[row];
        process->utilisation = (process->sm_s - process->sm_s_before) / (GS_SAMPLE_NS / 1e9);
        process->sm_s_before = process->sm_s;
    }
    gpu->next_sample_ns += GS_SAMPLE_NS;
}

void gs_advance(struct gs_gpu *gpu, int64_t now)
{
    while (gpu->next_sample_ns <= now) {
        advance_to(gpu, gpu->next_sample_ns);
        take_sample(gpu);
    }
    advance_to(gpu, now);
}

/* ---- slots ---- */

static void note_traffic(struct gs_gpu *gpu, const struct gs_slot *slot)
{
    if (slot->flow.steps && slot->flow.nic_tx + slot->flow.nic_rx > 0 && slot->end_ns > gpu->nic_until_ns)
        gpu->nic_until_ns = slot->end_ns; /* until then gpusimd looks often */
}

int gs_slot_add(struct gs_gpu *gpu, int owner, const struct gs_profile *profile, const struct gs_flow *flow, int64_t start_ns,
                int64_t end_ns, uint64_t *serial)
{
    gs_lock(&gpu->lock);
    gs_advance(gpu, gs_now());
    int found = -1;
    for (int index = 0; index < GS_SLOTS && found < 0; index++)
        if (!gpu->slots[index].serial)
            found = index;
    if (found >= 0) {
        struct gs_slot *slot = &gpu->slots[found];
        slot->owner = owner;
        slot->start_ns = slot->credited_ns = start_ns;
        slot->end_ns = end_ns;
        slot->profile = *profile;
        memset(&slot->flow, 0, sizeof slot->flow);
        if (flow)
            slot->flow = *flow;
        slot->serial = *serial = ++gpu->serial;
        note_traffic(gpu, slot);
    }
    gs_unlock(&gpu->lock);
    return found;
}

/* A slot that waited now knows its end. */
void gs_slot_change(struct gs_gpu *gpu, int index, uint64_t serial, int64_t end_ns, const struct gs_flow *flow)
{
    if (index < 0)
        return;
    gs_lock(&gpu->lock);
    struct gs_slot *slot = &gpu->slots[index];
    if (slot->serial == serial) {
        slot->end_ns = end_ns;
        if (flow) {
            slot->flow = *flow;
            /* What moved before this call was not known to be moving. */
            int64_t from = flow->start_ns < slot->credited_ns ? flow->start_ns : slot->credited_ns;
            credit_flow(gpu, slot, from, slot->credited_ns);
            note_traffic(gpu, slot);
        }
    }
    gs_unlock(&gpu->lock);
}

/* Make a slot that ends at `start_ns` last until `end_ns`; whether that was possible. */
int gs_slot_extend(struct gs_gpu *gpu, int index, uint64_t serial, int64_t start_ns, int64_t end_ns)
{
    if (index < 0)
        return 0;
    gs_lock(&gpu->lock);
    struct gs_slot *slot = &gpu->slots[index];
    int possible = slot->serial == serial && slot->end_ns == start_ns;
    if (possible)
        slot->end_ns = end_ns;
    gs_unlock(&gpu->lock);
    return possible;
}
