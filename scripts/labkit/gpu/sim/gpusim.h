/* The emulated GPU machine: layout of the shared state file, and what the libraries share.
 *
 * One file per machine, mapped by every process that uses a GPU, by NVML's readers and by gpusimd. Each GPU with the NIC beside
 * it has one robust process-shared mutex: a process killed while holding it leaves sums that are at worst one interval short.
 * Times are CLOCK_MONOTONIC nanoseconds, rates bytes per second, sums doubles. Sums are integrated lazily: gs_advance() brings them
 * up to now, so that whoever reads gets exact values.
 */
#ifndef GPUSIM_H
#define GPUSIM_H

#include <pthread.h>
#include <stdint.h>

#define GS_MAGIC 0x314d495355504752ull
#define GS_VERSION 1u
#define GS_GPUS 16
#define GS_SLOTS 64
#define GS_PROCESSES 16
#define GS_SAMPLES 128
#define GS_XIDS 64
#define GS_LINKS 18
#define GS_COMMS 64
#define GS_RANKS 16
#define GS_OPS 8
#define GS_FOREVER INT64_MAX

#define GS_CLOCK_MAX_HZ 1980e6
#define GS_CLOCK_IDLE_HZ 345e6
#define GS_MEMORY_CLOCK_HZ 2619e6
#define GS_POWER_IDLE_W 90.0
#define GS_POWER_SPAN_W 560.0
#define GS_POWER_CAP_W 700.0
#define GS_MEMORY_BYTES (80ull << 30)
#define GS_NVLINK_RATE 25e9 /* per link and direction */
#define GS_SAMPLE_NS 166666667ll

#define GS_REASON_IDLE 0x1ull
#define GS_REASON_APPLICATION_CLOCKS 0x2ull
#define GS_REASON_POWER_CAP 0x4ull

/* What a scenario may set, with the value of a healthy machine. All doubles, so that one function sets any. */
#define GS_GPU_SETTINGS(X)                                                                                                    \
    X(clock_hz, GS_CLOCK_MAX_HZ) X(clock_limit_hz, GS_CLOCK_MAX_HZ) X(throttle_reasons, 0) X(power_w_factor, 1)               \
    X(power_cap_w, GS_POWER_CAP_W) X(temperature_c, 0) X(memory_temperature_c, 0) X(speed, 1) X(ecc_corrected_hz, 0)          \
    X(ecc_uncorrected, 0) X(rows_remapped, 0) X(remap_pending, 0) X(remap_failed, 0) X(retired_pages, 0)                      \
    X(recovery_action, 0) X(lost, 0) X(foreign_share, 0) X(foreign_pid, 0) X(foreign_memory_bytes, 0)                         \
    X(nvlink_active, 0x3ffff) X(nvlink_error_hz, 0) X(nvlink_rate_factor, 1) X(pcie_gen, 5) X(pcie_width, 16)                 \
    X(pcie_replay_hz, 0) X(pcie_rate_factor, 1) X(gpm_supported, 1) X(delay_s, 0) X(nvml_error, 0)

#define GS_NIC_SETTINGS(X)                                                                                                    \
    X(rate_factor, 1) X(speed_hz, 50e9) X(width, 4) X(state, 1) X(flapping_hz, 0) X(symbol_error_hz, 0)                       \
    X(crc_error_hz, 0) X(retransmit_hz, 0) X(out_of_sequence_hz, 0) X(pause_hz, 0) X(cnp_hz, 0) X(link_rate_factor, 1)

/* Sums since the machine was started. Shares are summed as seconds. */
#define GS_GPU_SUMS(X)                                                                                                        \
    X(kernel_s) X(sm_s) X(tensor_s) X(dram_s) X(occupancy_s) X(pcie_tx_bytes) X(pcie_rx_bytes) X(nvlink_tx_bytes)             \
    X(nvlink_rx_bytes) X(energy_j) X(foreign_s) X(power_limited_s) X(thermal_limited_s) X(ecc_corrected) X(nvlink_errors)     \
    X(pcie_replays)

#define GS_NIC_SUMS(X)                                                                                                        \
    X(tx_bytes) X(rx_bytes) X(symbol_errors) X(crc_errors) X(link_downed) X(retransmits) X(out_of_sequence) X(pause) X(cnp)

#define GS_FIELD(name, ...) double name;
struct gs_gpu_settings { GS_GPU_SETTINGS(GS_FIELD) };
struct gs_nic_settings { GS_NIC_SETTINGS(GS_FIELD) };
struct gs_gpu_sums { GS_GPU_SUMS(GS_FIELD) };
struct gs_nic_sums { GS_NIC_SUMS(GS_FIELD) };

/* Bytes that move during a slot: `steps` steps of `step_ns`; in each, a link moves its bytes in the first `*_burst_ns` and is
 * then idle. PCIe bytes are even over the whole slot. */
struct gs_flow {
    int64_t start_ns;
    double step_ns, nvlink_burst_ns, nic_burst_ns;
    double nvlink_tx, nvlink_rx, nic_tx, nic_rx, pcie_tx, pcie_rx; /* bytes per step; pcie: of the whole slot */
    uint32_t steps;
};

/* What an operation makes of the GPU while it runs: mean shares of the SMs, the tensor pipes, the DRAM bandwidth. */
struct gs_profile {
    double sm, tensor, dram, occupancy;
    int32_t is_kernel;
};

/* One operation, or a run of alike ones, on a GPU: [start, end). */
struct gs_slot {
    uint64_t serial; /* 0: free */
    int32_t owner;   /* row in `processes` */
    int64_t start_ns, end_ns, credited_ns;
    struct gs_profile profile;
    struct gs_flow flow;
};

/* A process with a context here. It lives as long as it holds its byte of the lock file. */
struct gs_process {
    int32_t claimed, pid;
    uint64_t memory_bytes;
    double sm_s, sm_s_before, utilisation;
};

struct gs_sample {
    int64_t time_ns;
    struct gs_gpu_sums sums;
    double clock_hz, power_w;
};

struct gs_gpu {
    pthread_mutex_t lock;
    struct gs_gpu_settings set;
    struct gs_nic_settings nic_set;
    struct gs_gpu_sums sums;
    struct gs_nic_sums nic_sums;
    int64_t advanced_ns, kernel_until_ns, next_sample_ns, nic_until_ns;
    uint64_t serial, samples_taken, xid_count;
    double smooth_power_w, replay_rest;
    struct gs_slot slots[GS_SLOTS];
    struct gs_process processes[GS_PROCESSES];
    struct gs_sample samples[GS_SAMPLES];
    struct { uint64_t number; int64_t time_ns; } xids[GS_XIDS];
};

/* One collective of a communicator, from its first arrival to its end. */
struct gs_op {
    uint64_t sequence;
    uint32_t arrived, resolved, steps; /* `resolved` is a futex */
    int64_t latest_ns, start_ns, end_ns;
    double step_ns, nvlink_bytes, nic_bytes;
    double nvlink_rate[GS_RANKS], nic_rate[GS_RANKS];
};

/* One message from one rank to another. */
struct gs_message {
    uint64_t sequence;
    uint32_t arrived, resolved, over_nic;
    int64_t ready_ns, start_ns, end_ns;
    double bytes;
};

struct gs_comm {
    pthread_mutex_t lock;
    uint64_t generation; /* 0: never used */
    unsigned char id[128];
    int64_t touched_ns;
    uint32_t size, joined; /* `joined` is a futex */
    uint32_t has_joined[GS_RANKS];
    int32_t gpu[GS_RANKS];
    struct gs_op ops[GS_OPS];
    struct gs_message messages[GS_RANKS][GS_RANKS][GS_OPS];
};

struct gs_state {
    uint64_t magic;
    uint32_t version, size_bytes, gpus, per_host;
    int64_t started_ns;
    uint32_t moving, ready; /* `moving` is a futex: raised when traffic starts; `ready`: gpusimd runs */
    pthread_mutex_t comm_lock;
    uint64_t comm_generation;
    struct gs_gpu gpu[GS_GPUS];
    struct gs_comm comm[GS_COMMS];
};

/* state.c, physics.c */
int gs_create(const char *path, int gpus, int per_host);
struct gs_state *gs_open(const char *path);
struct gs_state *gs_state(void); /* that of $GPUSIM_STATE; NULL where there is none */
int gs_lives(void);              /* descriptor of the lock file beside it, -1 */
int64_t gs_now(void);
void gs_sleep_until(int64_t time_ns);
void gs_lock(pthread_mutex_t *mutex);
void gs_unlock(pthread_mutex_t *mutex);
void gs_wait(uint32_t *word, uint32_t value, int64_t timeout_ns);
void gs_wake(uint32_t *word);
void gs_advance(struct gs_gpu *gpu, int64_t now); /* with the lock held */
int gs_slot_add(struct gs_gpu *gpu, int owner, const struct gs_profile *profile, const struct gs_flow *flow, int64_t start_ns,
                int64_t end_ns, uint64_t *serial);
void gs_slot_change(struct gs_gpu *gpu, int slot, uint64_t serial, int64_t end_ns, const struct gs_flow *flow);
int gs_slot_extend(struct gs_gpu *gpu, int slot, uint64_t serial, int64_t start_ns, int64_t end_ns);
double gs_clock_hz(const struct gs_gpu *gpu);
uint64_t gs_reasons(const struct gs_gpu *gpu);
double gs_kernel_rate(const struct gs_gpu *gpu);
double gs_pcie_rate(const struct gs_gpu *gpu);
double gs_nvlink_rate(const struct gs_gpu *gpu);
double gs_nic_rate(const struct gs_state *state, const struct gs_comm *comm, int index);
double gs_nic_speed(const struct gs_gpu *gpu);
int gs_nic_is_up(const struct gs_gpu *gpu, int64_t now);
int64_t gs_nic_up_from(const struct gs_gpu *gpu, int64_t time);
int gs_process_pid(const struct gs_state *state, int gpu, int row, int lives); /* pid of a living process, 0 */

/* stream.c: streams and events of this process */
struct cs_stream;
struct cs_event;
typedef int64_t (*cs_call)(void *data, struct cs_stream *stream, int64_t ready_ns); /* its end; frees `data` */

int cs_device_count(void);
int cs_set_device(int device);
int cs_get_device(void);
int cs_gpu(void); /* index in the machine of this thread's device, -1 */
struct gs_gpu *cs_gpu_of(struct cs_stream *stream);
int cs_gpu_index(struct cs_stream *stream);
int cs_owner(struct cs_stream *stream);
int cs_error(int clear);
void cs_fail(int error);
int cs_memory(int64_t bytes);
struct cs_stream *cs_stream_new(void);
struct cs_stream *cs_stream_of(void *handle);
double cs_work(const void *argument);
int cs_kernel(struct cs_stream *stream, double seconds);
int cs_copy(struct cs_stream *stream, uint64_t bytes, int kind);
int cs_queue_call(struct cs_stream *stream, cs_call call, void *data);
int cs_sync(struct cs_stream *stream);
int cs_sync_device(void);
int cs_query(struct cs_stream *stream);
struct cs_event *cs_event_new(void);
int cs_event_record(struct cs_event *event, struct cs_stream *stream);
int cs_event_wait(struct cs_event *event, struct cs_stream *stream);
int cs_event_sync(struct cs_event *event);
int cs_event_query(struct cs_event *event, int64_t *time_ns);

#endif
