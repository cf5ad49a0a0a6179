/* gpusimd STATE SYS: what the hardware does by itself. Writes the NICs' counters into the emulated sysfs, 1,000 times a second while
 * traffic moves, keeps ports, links and error counters up to date, and takes dead processes off their GPUs.
 *
 * A counter file is a mapped page that holds a number of constant length (counting starts high): a write is one store of 16 bytes.
 */
#define _GNU_SOURCE
#include "gpusim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_NS 1000000ll
#define CHORE_NS 100000000ll
#define FLAP_CHORE_NS 20000000ll
#define FIRST 1000000000000000ull /* 16 digits until 9 petabytes later */
#define PACKET_BYTES 4096

enum { XMIT_DATA, RCV_DATA, XMIT_PACKETS, RCV_PACKETS, COUNTERS };
static const char *const counter_names[] = {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"};

static struct gs_state *state;
static char *counters[GS_GPUS][COUNTERS];
static int64_t written_ns[GS_GPUS];
static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

/* Rewrite a small file if its content changed. The folder that a path starts in is the working directory. */
struct file {
    char text[64];
};
static struct file port_state[GS_GPUS], port_physical[GS_GPUS], port_rate[GS_GPUS], speed[GS_GPUS][2], width[GS_GPUS][2];
static struct file errors[GS_GPUS][16], aer[GS_GPUS];

static void put(struct file *file, const char *path, const char *text, const char *content)
{
    if (!strcmp(file->text, text))
        return;
    snprintf(file->text, sizeof file->text, "%s", text);
    int handle = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (handle < 0)
        return;
    ssize_t length = (ssize_t)strlen(content);
    if (pwrite(handle, content, (size_t)length, 0) == length && ftruncate(handle, length))
        perror(path);
    close(handle);
}

static void put_line(struct file *file, const char *path, const char *text)
{
    char line[128];
    snprintf(line, sizeof line, "%s\n", text);
    put(file, path, text, line);
}

static void map_counters(int index)
{
    for (int which = 0; which < COUNTERS; which++) {
        char path[256];
        snprintf(path, sizeof path, "class/infiniband/mlx5_%d/ports/1/counters/%s", index, counter_names[which]);
        int handle = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        char *at = handle < 0 || ftruncate(handle, 17) ? MAP_FAILED : mmap(NULL, 17, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
        if (handle >= 0)
            close(handle);
        if (at == MAP_FAILED) {
            perror(path);
            exit(1);
        }
        counters[index][which] = at;
        at[16] = '\n';
    }
}

static void count(char *at, uint64_t value)
{
    char digits[16];
    value += FIRST;
    for (int place = 15; place >= 0; place--, value /= 10)
        digits[place] = (char)('0' + value % 10);
    memcpy(at, digits, sizeof digits);
}

static void write_counters(int index, int64_t now)
{
    struct gs_gpu *gpu = &state->gpu[index];
    gs_lock(&gpu->lock);
    gs_advance(gpu, now);
    double tx = gpu->nic_sums.tx_bytes, rx = gpu->nic_sums.rx_bytes;
    gs_unlock(&gpu->lock);
    count(counters[index][XMIT_DATA], (uint64_t)(tx / 4));
    count(counters[index][RCV_DATA], (uint64_t)(rx / 4));
    count(counters[index][XMIT_PACKETS], (uint64_t)(tx / PACKET_BYTES));
    count(counters[index][RCV_PACKETS], (uint64_t)(rx / PACKET_BYTES));
    written_ns[index] = now;
}

static void chore_port(int index, int64_t now)
{
    struct gs_gpu *gpu = &state->gpu[index];
    char folder[160], path[256], text[64];
    snprintf(folder, sizeof folder, "class/infiniband/mlx5_%d/ports/1", index);
    int up = gs_nic_is_up(gpu, now);
    snprintf(path, sizeof path, "%s/state", folder);
    put_line(&port_state[index], path, up ? "4: ACTIVE" : "1: DOWN");
    snprintf(path, sizeof path, "%s/phys_state", folder);
    put_line(&port_physical[index], path, up ? "5: LinkUp" : "2: Polling");
    double per_lane = gpu->nic_set.speed_hz * 8 / 4e9;
    const char *name = per_lane > 60 ? "NDR" : per_lane > 30 ? "HDR" : per_lane > 15 ? "EDR" : per_lane > 8 ? "QDR" : "SDR";
    snprintf(text, sizeof text, "%g Gb/sec (%dX %s)", gs_nic_speed(gpu) * 8 / 1e9, (int)gpu->nic_set.width, name);
    snprintf(path, sizeof path, "%s/rate", folder);
    put_line(&port_rate[index], path, text);
    const struct gs_nic_sums *sums = &gpu->nic_sums;
    const struct {
        const char *name;
        double value;
    } all[] = {
        {"counters/symbol_error", sums->symbol_errors},
        {"counters/port_rcv_errors", sums->crc_errors + sums->symbol_errors},
        {"counters/link_downed", sums->link_downed},
        {"counters/link_error_recovery", sums->link_downed},
        {"counters/port_xmit_wait", sums->pause},
        {"hw_counters/rx_icrc_encapsulated", sums->crc_errors},
        {"hw_counters/local_ack_timeout_err", sums->retransmits},
        {"hw_counters/roce_adp_retrans", sums->retransmits},
        {"hw_counters/packet_seq_err", sums->retransmits},
        {"hw_counters/out_of_sequence", sums->out_of_sequence},
        {"hw_counters/np_cnp_sent", sums->cnp},
        {"hw_counters/rp_cnp_handled", sums->cnp},
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        snprintf(path, sizeof path, "%s/%s", folder, all[at].name);
        snprintf(text, sizeof text, "%llu", (unsigned long long)all[at].value);
        put_line(&errors[index][at], path, text);
    }
}

/* The GPU's link, as both of its ends show it. A GPU off the bus reads as all ones. */
static void chore_pci(int index, const char *device)
{
    static const char *const speeds[] = {"Unknown",        "2.5 GT/s PCIe",  "5.0 GT/s PCIe", "8.0 GT/s PCIe",
                                         "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};
    const struct gs_gpu *gpu = &state->gpu[index];
    int generation = (int)gpu->set.pcie_gen, lost = gpu->set.lost > 0;
    generation = generation < 0 || generation > 6 ? 0 : generation;
    char path[256], text[64], content[256];
    for (int port = 0; port < 2; port++) {
        snprintf(path, sizeof path, "bus/pci/devices/%s/%scurrent_link_speed", device, port ? "../" : "");
        put_line(&speed[index][port], path, lost && !port ? "Unknown" : speeds[generation]);
        snprintf(path, sizeof path, "bus/pci/devices/%s/%scurrent_link_width", device, port ? "../" : "");
        snprintf(text, sizeof text, "%d", lost && !port ? 63 : (int)gpu->set.pcie_width);
        put_line(&width[index][port], path, text);
    }
    unsigned long long errors_seen = (unsigned long long)gpu->sums.pcie_replays;
    snprintf(path, sizeof path, "bus/pci/devices/%s/aer_dev_correctable", device);
    snprintf(text, sizeof text, "%llu", errors_seen);
    snprintf(content, sizeof content,
             "RxErr 0\nBadTLP %llu\nBadDLLP 0\nRollover 0\nTimeout %llu\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR %llu\n",
             errors_seen - errors_seen / 3, errors_seen / 3, errors_seen);
    put(&aer[index], path, text, content);
}

/* Take the slots and rows of processes that have ended. */
static void reap(int index, int lives)
{
    struct gs_gpu *gpu = &state->gpu[index];
    int64_t now = gs_now();
    for (int row = 0; row < GS_PROCESSES; row++) {
        if (!gpu->processes[row].claimed || gs_process_pid(state, index, row, lives))
            continue;
        gs_lock(&gpu->lock);
        if (gpu->processes[row].claimed && !gs_process_pid(state, index, row, lives)) {
            gs_advance(gpu, now);
            for (int slot = 0; slot < GS_SLOTS; slot++)
                if (gpu->slots[slot].owner == row)
                    gpu->slots[slot].serial = 0;
            memset(&gpu->processes[row], 0, sizeof gpu->processes[row]);
        }
        gs_unlock(&gpu->lock);
    }
}

static char devices[GS_GPUS][32];

static int64_t chores(int lives)
{
    int64_t now = gs_now(), next = CHORE_NS;
    for (int index = 0; index < (int)state->gpus; index++) {
        struct gs_gpu *gpu = &state->gpu[index];
        reap(index, lives);
        gs_lock(&gpu->lock);
        gs_advance(gpu, now);
        gs_unlock(&gpu->lock);
        chore_port(index, now);
        chore_pci(index, devices[index]);
        if (gpu->nic_set.flapping_hz > 0)
            next = FLAP_CHORE_NS;
    }
    return now + next;
}

int main(int argc, char **argv)
{
    if (argc < 3 || !(state = gs_open(argv[1])) || chdir(argv[2])) {
        fprintf(stderr, "usage: gpusimd STATE SYS ADDRESS…\n");
        return 64;
    }
    char name[4096];
    snprintf(name, sizeof name, "%s.lives", argv[1]);
    int lives = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    fchmod(lives, 0666); /* as the devices of a real machine: anybody may ask */
    signal(SIGTERM, stop);
    signal(SIGINT, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* the machine goes with who started it */
    for (int index = 0; index < (int)state->gpus; index++) {
        snprintf(devices[index], sizeof devices[index], "%s", index + 3 < argc ? argv[index + 3] : "");
        map_counters(index);
        write_counters(index, gs_now());
    }
    int64_t next_chore = chores(lives);
    state->ready = 1;
    while (!stopped) {
        int64_t now = gs_now();
        uint32_t seen = __atomic_load_n(&state->moving, __ATOMIC_ACQUIRE);
        int moving = 0;
        for (int index = 0; index < (int)state->gpus; index++) {
            int64_t until = __atomic_load_n(&state->gpu[index].nic_until_ns, __ATOMIC_ACQUIRE);
            if (until <= written_ns[index])
                continue;
            write_counters(index, now);
            moving = 1;
        }
        if (now >= next_chore)
            next_chore = chores(lives);
        if (moving)
            gs_sleep_until((now / TICK_NS + 1) * TICK_NS);
        else if (next_chore > now)
            gs_wait(&state->moving, seen, next_chore - now);
    }
    state->ready = 0;
    return 0;
}
