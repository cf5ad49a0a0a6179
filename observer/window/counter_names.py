"""Names of counters shared between rooms, with their meanings."""

from __future__ import annotations

RANK_GONE = "census.gone"
NCCL_SILENT = "ras.missing"

# `value` is seconds over the window unless said otherwise.
COUNTER_NAMES = {
    "cpu.throttled_s": "scope cgroup: time the rank's cgroup was throttled by its CPU quota (limit = quota in CPUs)",
    "cpu.throttled_periods": "scope cgroup: periods in which it was throttled, events",
    "cpu.taken_s": "scope rank: CPU time that the process comm, pid ran while threads of this rank waited in the run queue; of a rank's "
    "worker, and of what started the job, pid is that rank's",
    "cpu.workers_run_s": "scope rank: CPU time of the processes that belong to it (loader workers)",
    "thread.run_s": "scope thread: instance 'name: native function it mostly ran (n threads)': CPU time of threads without Python state; "
    "likewise thread.ready_s, ready but not running",
    "cpu.ready_s": "scope rank: training thread ready but not running, total",
    "cpu.run_s": "scope rank: training thread on a CPU, total",
    "cpu.steal_s": "scope host: stolen by the hypervisor, all CPUs",
    "cpu.softirq_s": "scope host: softirq time, all CPUs; instance cpuN: of a CPU that spent 2 % of the window in interrupts; "
    "likewise cpu.irq_s",
    "cpu.busy_s": "scope host: non-idle time, all CPUs (limit = CPUs x window)",
    "memory.minor_faults": "scope rank: events: pages given to the process without reading them from anywhere",
    "psi.cpu.some_s": "scope host: /proc/pressure/cpu some, likewise psi.memory.some_s, psi.memory.full_s, psi.io.some_s, psi.io.full_s",
    "disk.throttled": "scope cgroup: gauge: bytes/s that an I/O throttle (blkio v1, io.max v2) allows; instance 'major:minor direction'",
    "disk.read_bytes": "scope disk: instance 'name major:minor'; likewise disk.write_bytes, disk.busy_s, disk.read_s, disk.reads",
    "storage.reads": "scope storage: events: reads that a server of files answered; instance 'NFS server nas1 (10.0.0.5) for /data "
    "(nfs4 0:53)' or 'OST scratch-OST0003 at 10.0.0.5@tcp for /scratch (lustre 0:54)'; likewise storage.writes, storage.retransmits",
    "storage.read_s": "scope storage: from the making of these requests to their answers, added up; likewise storage.write_s",
    "storage.in_flight": "scope storage: gauge: events: requests to an OST without an answer as the window ended",
    "nic.tx_bytes": "scope nic: instance = interface; likewise nic.rx_bytes, nic.tx_dropped, nic.rx_dropped, nic.tx_errors, nic.rx_errors",
    "qdisc.rate_limit": "scope nic: gauge: limit in bytes/s of a shaper (tbf, htb) on the interface; instance = interface",
    "qdisc.drops": "scope nic: packets the queueing discipline dropped, events; likewise qdisc.overlimits, qdisc.backlog_bytes (gauge)",
    "silence.received_bytes": "scope rank: instance = address of a connection that its training thread, or a thread that this waits for, "
    "waited for most of the time since the rank's last progress: bytes that came from there since then; likewise silence.sent_bytes",
    "silence.waits": "scope rank: events: how often it waited there since then; instance = the same",
    "process.stopped_s": "scope rank: time in state T",
    # scope server, instance = address of a server that ranks of the job ask, comm = its program; observer/serving.
    "server.asked_s": "time in which it had a question of a rank unanswered",
    "server.alone_s": "the part of it in which no other server of the run had one",
    "server.any_asked_s": "instance '': time in which any server of the run had one",
    "server.rounds": "instance '': events: how often any server began to have one after none had",
    "server.idle_s": "instance '': time of these rounds in which a server had none, mean over servers",
    "server.idle_in_round_s": "instance '': gauge: the same of one round, median; minimum and maximum: quartiles",
    "server.questions": "events: questions asked and answered in the window; likewise server.transfers: requests that carry far more than "
    "their answers, as new weights do",
    "server.transfer_s": "time in which a transfer to it was under way; likewise server.transfer_bytes",
    "server.question_s": "gauge: seconds from a question to the end of its answer, median; minimum and maximum: quartiles",
    "server.pace": "gauge: the same per byte of the answer, s/byte",
    "server.run_s": "CPU time of its threads; likewise server.queue_s: ready but not running",
    # scope gpu, instance 'gpu2' (NVML's index); observer/tables. A missing row was not reported by
    # the GPU.
    "gpu.sm_clock_hz": "gauge: while the GPU works; limit = the highest clock; likewise gpu.memory_clock_hz",
    "gpu.throttle.<reason>_s": "seconds with the reason set for a lowered clock: hw_thermal, sw_thermal, power_cap, power_brake, "
    "hw_slowdown, app_clocks, sync_boost",
    "gpu.power_w": "gauge: limit = the cap in force",
    "gpu.power_cap_w": "gauge: limit = the cap it comes with",
    "gpu.temperature_c": "gauge: limit = where the hardware slows down",
    "gpu.memory_temperature_c": "gauge: hottest of the memory",
    "gpu.kernel_active": "gauge: share of time in which any kernel ran",
    "gpu.sm_active": "gauge: mean share of SMs with work; likewise gpu.tensor_active, gpu.dram_active",
    "gpu.sm_active_computing": "gauge: level of gpu.sm_active while computing (observer/gpu/levels.py)",
    "gpu.ecc_corrected": "events; likewise gpu.ecc_uncorrected, gpu.rows_remapped, gpu.retired_pages",
    "gpu.remap_pending": "gauge: 1 where rows wait for a reset to be remapped; likewise gpu.remap_failed",
    "gpu.xid.<number>": "events: critical errors that the driver reported",
    "gpu.earlier_xid.<number>": "gauge: how often it came in the kernel's log of the ten minutes before the window, or while probes loaded",
    "gpu.lost": "gauge 1: the GPU has fallen off the bus",
    "gpu.recovery_action": "gauge: what the driver asks for (RECOVERY_ACTIONS of probes/gpu)",
    "gpu.foreign_memory_bytes": "gauge: held by the process comm, pid, which belongs to no rank of the GPU's job",
    "gpu.foreign_active": "gauge: its share of SM time",
    # scope nvlink, instance 'gpu2'
    "nvlink.links_down": "gauge: links that were down; limit = links of the GPU",
    "nvlink.errors": "events: CRC, replay and recovery errors of all links",
    "nvlink.tx_bytes": "all links; likewise nvlink.rx_bytes",
    "nvlink.burst_hz": "gauge: rate at which the mean byte moved, one direction, over 0.1 s intervals; limit = nominal",
    "nvlink.collective_mu": "gauge: mean share of the nominal rate, trimmed (resource_use.py); likewise nvlink.collective_sigma",
    # scope pcie, instance = PCI address of a GPU, NIC, NVMe disk or bridge
    "pcie.speed_gts": "gauge: GT/s per lane, the highest seen; limit = what it and the port above it can do",
    "pcie.width": "gauge: lanes, the most seen; minimum = the fewest; limit = what it and the port above it can do",
    "pcie.replays": "events: packets sent again; scope pcie",
    "pcie.aer_correctable": "events; likewise pcie.aer_nonfatal, pcie.aer_fatal",
    "pcie.rx_bytes": "host to device; likewise pcie.tx_bytes",
    "pcie.burst_hz": "gauge: rate of the copies on the critical path; limit = what the link can do",
    # scope nic, instance 'mlx5_3', 'mlx5_3/2', 'eth0'
    "nic.speed_hz": "gauge: bytes/s, the least seen while up; limit = what the port can do, where it says",
    "nic.width": "gauge: lanes, the least seen while up",
    "nic.state": "gauge: share of the readings that found the port up; minimum 0: it was down at times",
    "nic.symbol_errors": "events; likewise nic.link_downed, nic.crc_errors, nic.retransmits, nic.out_of_sequence, nic.pause, nic.cnp",
    "nic.burst_hz": "gauge: rate at which the mean byte moved, in bursts of readings at 1 kHz; limit = nic.speed_hz",
    "nic.collective_mu": "gauge: mean share of nic.speed_hz in those bursts, trimmed (resource_use.py); likewise nic.collective_sigma",
    # scope rank
    "gpu.launches": "scope rank: kernels launched, extrapolated where they are too many to be counted",
    "gpu.wait_s": "scope rank: training thread in calls that wait for the GPU",
    "gpu.compute_s": "scope rank: its GPU computing (observer/gpu/levels.py); likewise gpu.collective_s, gpu.idle_s",
    "ras.behind": "scope rank: gauge: operations that NCCL says the rank has not launched while the job stands still; limit = the furthest",
    RANK_GONE: "scope rank: gauge 1: the launcher of its siblings started the rank on this host, and no process is it",
    NCCL_SILENT: "scope rank: gauge 1: NCCL says the rank does not answer; instance = communicator",
    "nccl.launched": "scope rank: collectives put on streams, events",
}
