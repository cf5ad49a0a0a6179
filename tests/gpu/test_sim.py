"""The emulated GPU machine keeps its physics and its vendor's interface: real processes, real pynvml."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from simsupport import Machine, eventually, finish, observe, ranks, start, told, words_of

from rankscope.unwinder.gpu.files import KernelNames, Launched

pytestmark = pytest.mark.beside(ranks=False)

GIB = 1 << 30


@pytest.fixture(scope="module")
def shared_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    memory = Path("/dev/shm")
    folder = memory / f"gpusim-test-{os.getpid()}" if memory.is_dir() else tmp_path_factory.mktemp("gpusim")
    with Machine(folder).start() as machine:
        yield machine
        for leftover in folder.glob("state.*"):
            leftover.unlink(missing_ok=True)


@pytest.fixture
def machine(shared_machine: Machine) -> Iterator[Machine]:
    """The machine, healthy again after each test."""
    yield shared_machine
    for index in range(shared_machine.gpus):
        shared_machine.gpu(index).set(
            clock_hz=1980e6, clock_limit_hz=1980e6, throttle_reasons=0, power_cap_w=700, speed=1, lost=False,
            foreign_share=0, foreign_pid=0, foreign_memory_bytes=0, nvlink_active=0x3FFFF, pcie_gen=5, pcie_width=16,
            ecc_corrected_hz=0, pcie_replay_hz=0, nvlink_rate_factor=1,
        )  # fmt: skip
        shared_machine.nic(index).set(
            rate_factor=1, speed_hz=50e9, link_rate_factor=1, flapping_hz=0, symbol_error_hz=0, state=1
        )


def test_launching_is_asynchronous_kernels_of_a_stream_are_serial_and_synchronising_waits(machine: Machine) -> None:
    program = """
    one, other = stream(), stream()
    began = time.monotonic()
    for _ in range(3):
        kernel(0.1, one)
    kernel(0.1, other)
    launched = time.monotonic() - began
    state = rt.cudaStreamQuery(one)
    assert rt.cudaStreamSynchronize(other) == 0
    first = time.monotonic() - began
    assert rt.cudaDeviceSynchronize() == 0
    tell(launched=launched, query=state, other=first, all=time.monotonic() - began)
    """
    before = {name: machine.gpu(0).get(name) for name in ("kernel_s", "sm_s", "tensor_s")}
    seen = finish(start(machine, 0, program))
    assert seen["launched"] < 0.1
    assert seen["query"] == 600
    assert 0.1 <= seen["other"] < seen["all"]
    assert 0.3 <= seen["all"] < 0.45
    # 0.3 s in which any kernel ran; 0.4 s of kernels.
    grown = {name: machine.gpu(0).get(name) - value for name, value in before.items()}
    assert grown == {
        "kernel_s": pytest.approx(0.3, rel=0.01), "sm_s": pytest.approx(0.36), "tensor_s": pytest.approx(0.24)
    }  # fmt: skip


def test_events_date_what_happened_between_them(machine: Machine) -> None:
    program = """
    one, other = stream(), stream()
    events = [c_void_p() for _ in range(3)]
    for event in events:
        rt.cudaEventCreate(byref(event))
    kernel(0.02, one)  # what follows is queued while this runs, so that no time of the host's is in between
    rt.cudaEventRecord(events[0], one)
    kernel(0.07, one)
    rt.cudaEventRecord(events[1], one)
    rt.cudaStreamWaitEvent(other, events[1], 0)
    kernel(0.03, other)
    rt.cudaEventRecord(events[2], other)
    rt.cudaEventSynchronize(events[2])
    got = [ctypes.c_float(), ctypes.c_float()]
    assert rt.cudaEventElapsedTime(byref(got[0]), events[0], events[1]) == 0
    assert rt.cudaEventElapsedTime(byref(got[1]), events[1], events[2]) == 0
    tell(first=got[0].value, second=got[1].value)
    """
    seen = finish(start(machine, 1, program))
    assert seen["first"] == pytest.approx(70, abs=0.01)
    assert seen["second"] == pytest.approx(30, abs=0.01)


def test_a_full_queue_blocks_the_launching_thread(machine: Machine) -> None:
    program = """
    began = time.monotonic()
    for _ in range(1024 + 211):
        kernel(0.001)
    tell(seconds=time.monotonic() - began)
    """
    assert finish(start(machine, 0, program))["seconds"] >= 0.205


def test_gpm_tells_a_known_pattern_within_two_percent(machine: Machine) -> None:
    process = start(
        machine,
        3,
        """
        one = stream()
        begin = rt.cudaStreamSynchronize(one)
        tell(ready=1)
        while True:
            for _ in range(23):
                kernel(0.003, one)
                rt.cudaMemcpyAsync(1, None, 2678 * 10**5 // 2, 1, one)  # 2.5 ms over PCIe 5 x16 as emulated, and 5 µs to start
            rt.cudaStreamSynchronize(one)
        """,
    )
    try:
        told(process)
        time.sleep(0.5)
        seen = observe(
            machine,
            """
            import time
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByIndex(3)
            assert nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice
            first, second = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(gpu, first)
            time.sleep(2.0)
            nvml.nvmlGpmSampleGet(gpu, second)
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 7
            request.sample1, request.sample2 = first, second
            for place, number in enumerate((1, 2, 5, 10, 20, 21, 30)):
                request.metrics[place].metricId = number
            nvml.nvmlGpmMetricsGet(request)
            got = [(m.value, m.nvmlReturn) for m in request.metrics[:7]]
            nvml.nvmlGpmSampleFree(first)
            power = nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
            print(json.dumps([got, power, nvml.nvmlDeviceGetUtilizationRates(gpu).gpu]))
            """,
        )
    finally:
        process.kill()
        process.communicate()
    values = [value for value, _ in seen[0]]
    assert [error for _, error in seen[0]] == [0, 0, 0, 0, 0, 0, 3]
    # Whatever the machine's load lets the job reach, the shares belong together: SM 0.9, tensor 0.6 of the time kernels run.
    assert 0.25 < values[0] / 100 < 0.6
    assert values[1] == pytest.approx(values[0] * 0.9, rel=0.02)
    assert values[2] == pytest.approx(values[0] * 0.6, rel=0.02)
    assert values[4] == 0
    per_period = 2678e5 / 2 / (1 << 20) / 0.003
    assert values[5] == pytest.approx(values[0] / 100 * per_period, rel=0.02)
    assert seen[1] == pytest.approx(90 + 560 * values[0] / 100 * (0.7 * 0.9 + 0.3 * 0.5), rel=0.15)
    assert seen[2] == pytest.approx(values[0], abs=25)


def test_an_all_reduce_starts_with_the_last_rank_and_ends_for_all(machine: Machine) -> None:
    program = """
    comm = communicator(rank, size, "last")
    events = [c_void_p() for _ in range(2)]
    one = stream()
    for event in events:
        rt.cudaEventCreate(byref(event))
    tell(ready=1)
    sys.stdin.readline()
    kernel(0.05 + 0.15 * (rank == 2), one)
    rt.cudaEventRecord(events[0], one)
    assert all_reduce(comm, 3 * 2**30, one) == 0
    rt.cudaEventRecord(events[1], one)
    assert rt.cudaStreamSynchronize(one) == 0
    stay = ctypes.c_float()
    rt.cudaEventElapsedTime(byref(stay), *events)
    tell(stay=stay.value, end=time.monotonic())
    """
    with ranks(machine, range(3), program) as started:
        for process in started:
            told(process)
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        seen = [told(process) for process in started]
        # Ring of 3 over NVLink: 4 steps of 1 GiB at 450 GB/s.
        transfer_ms = 4 * GIB / 450e9 * 1e3
        assert seen[2]["stay"] == pytest.approx(transfer_ms, rel=0.05)
        assert min(seen[0]["stay"], seen[1]["stay"]) > transfer_ms + 80
        assert max(one["end"] for one in seen) - min(one["end"] for one in seen) < 0.1
        assert machine.gpu(1).get("nvlink_tx_bytes") >= 4 * GIB * 0.99


def test_a_throttled_clock_lengthens_kernels_and_nvml_shows_it(machine: Machine) -> None:
    machine.gpu(1).set(clock_hz=990e6, throttle_reasons=0x40, temperature_c=91)
    machine.gpu(2).set(power_cap_w=300)
    program = """
    began = time.monotonic()
    kernel(0.1)
    rt.cudaDeviceSynchronize()
    tell(seconds=time.monotonic() - began)
    for _ in range(300):
        kernel(0.05)
    rt.cudaDeviceSynchronize()
    """
    with ranks(machine, range(3), program) as started:
        seconds = [told(process)["seconds"] for process in started]
        seen = observe(
            machine,
            """
            nvml.nvmlInit()
            gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
            print(json.dumps([[nvml.nvmlDeviceGetClockInfo(gpu, 1), nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
                               nvml.nvmlDeviceGetTemperature(gpu, 0),
                               nvml.nvmlDeviceGetFieldValues(gpu, [186])[0].value.uiVal / 1e3,
                               nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3] for gpu in gpus]))
            """,
        )
    assert 0.1 <= seconds[0] < 0.19
    assert seconds[1] >= 0.2
    assert seconds[2] >= 0.2
    clocks, reasons, temperatures, power, caps = zip(*seen, strict=True)
    assert clocks[:2] == (1980, 990)
    assert clocks[2] < 1000
    assert reasons == (0, 0x40, 0x4)
    assert temperatures[1] == 91
    assert power[2] <= caps[2] + 1 == 301
    assert power[0] == pytest.approx(90 + 560 * 0.78, rel=0.02)
    machine.gpu(1).set(temperature_c=0)


def test_a_slow_nic_is_low_and_flat_while_its_peers_burst(machine: Machine) -> None:
    machine.nic(5).set(rate_factor=0.25)
    program = """
    comm = communicator(rank, size, "nic")
    tell(ready=1)
    while True:
        all_reduce(comm, 8 * 2**30)  # 14 steps; of each, 256 MiB by every NIC: 5.4 ms at 50 GB/s
        rt.cudaDeviceSynchronize()
    """
    with ranks(machine, range(8), program) as started:
        for process in started:
            told(process)
        assert eventually(lambda: words_of(machine, 5) > 10**15 + 10**8)
        rates: dict[int, list[float]] = {4: [], 5: []}
        before = {nic: (time.monotonic(), words_of(machine, nic)) for nic in rates}
        used_before = _cpu_s(machine.daemon_pid)
        began = time.monotonic()
        while time.monotonic() - began < 2:
            time.sleep(0.002)
            for nic, values in rates.items():
                now, words = time.monotonic(), words_of(machine, nic)
                values.append((words - before[nic][1]) * 4 / (now - before[nic][0]))
                before[nic] = now, words
        used = (_cpu_s(machine.daemon_pid) - used_before) / (time.monotonic() - began)
    moving = {nic: [rate for rate in values if rate > 1e8] for nic, values in rates.items()}
    assert 8e9 < statistics.median(moving[5]) < 14e9
    assert statistics.quantiles(moving[4], n=10)[-1] > 35e9
    still = {nic: sum(rate <= 1e8 for rate in values) / len(values) for nic, values in rates.items()}
    assert still[5] < 0.3 < still[4]
    assert statistics.fmean(rates[4]) == pytest.approx(statistics.fmean(rates[5]), rel=0.1)
    print(f"gpusimd: {100 * used:.1f} % of a core")
    assert used < 0.1


def test_a_flapping_port_is_down_now_and_then_and_holds_up_its_collectives(machine: Machine) -> None:
    port = machine.sys / "class/infiniband/mlx5_2/ports/1"
    before = int((port / "counters/link_downed").read_text())
    machine.nic(2).set(flapping_hz=2)
    program = """
    comm = communicator(rank, size, "flap")
    longest = 0.0
    tell(ready=1)
    began = time.monotonic()
    while True:
        start = time.monotonic()
        all_reduce(comm, 2**24)
        rt.cudaDeviceSynchronize()
        longest = max(longest, time.monotonic() - start)
        if rank == 0 and time.monotonic() - began > 1.6:
            tell(longest=longest)
    """
    with ranks(machine, range(5), program) as started:
        for process in started:
            told(process)
        seen = set()
        assert eventually(lambda: seen.add((port / "state").read_text()) or len(seen) == 2)
        assert told(started[0])["longest"] > 0.05
    assert seen == {"4: ACTIVE\n", "1: DOWN\n"}
    assert int((port / "counters/link_downed").read_text()) >= before + 2
    assert (machine.sys / "class/infiniband/mlx5_1/ports/1/counters/link_downed").read_text() == "0\n"


def test_a_lost_gpu_answers_so_on_every_call_and_fails_the_job(machine: Machine) -> None:
    process = start(
        machine,
        4,
        """
        kernel(0.01)
        rt.cudaDeviceSynchronize()
        tell(ready=1)
        sys.stdin.readline()
        kernel(0.01)
        tell(error=rt.cudaDeviceSynchronize(), again=rt.cudaGetLastError())
        """,
    )
    told(process)
    machine.gpu(4).set(lost=True)
    out, _ = process.communicate("go\n", timeout=20)
    assert '"error": 999' in out
    seen = observe(
        machine,
        """
        nvml.nvmlInit()
        def said(call):
            try:
                call()
                return 0
            except nvml.NVMLError as error:
                return error.value
        def handle(index):
            found = nvml.c_nvmlDevice_t()
            nvml.nvmlLib.nvmlDeviceGetHandleByIndex_v2(index, nvml.byref(found))
            return found
        from rankscope.probes.gpu.nvml import read_gpus
        print(json.dumps([[said(lambda: nvml.nvmlDeviceGetHandleByIndex(index)), said(lambda: nvml.nvmlDeviceGetName(handle(index))),
                           said(lambda: nvml.nvmlDeviceGetPowerUsage(handle(index)))] for index in (3, 4)]
                         + [[gpu.lost for gpu in read_gpus().gpus]]))
        """,
    )
    assert seen == [[0, 0, 0], [15, 15, 15], [index == 4 for index in range(8)]]


def test_an_xid_event_reaches_who_registered_for_it(machine: Machine) -> None:
    words = [
        sys.executable,
        "-c",
        "import pynvml as nvml\n"
        "nvml.nvmlInit()\n"
        "events = nvml.nvmlEventSetCreate()\n"
        "for index in range(8):\n"
        "    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(index), nvml.nvmlEventTypeXidCriticalError, events)\n"
        "try:\n"
        "    nvml.nvmlEventSetWait_v2(events, 0)\n"
        "except nvml.NVMLError_Timeout:\n"
        "    print('nothing yet', flush=True)\n"
        "found = nvml.nvmlEventSetWait_v2(events, 20000)\n"
        "print(found.eventType, found.eventData, nvml.nvmlDeviceGetIndex(found.device))\n",
    ]
    process = subprocess.Popen(machine.observer_command(words), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "nothing yet\n"
    machine.gpu(6).set(xid=94)
    assert process.communicate(timeout=20)[0] == "8 94 6\n"


def test_another_process_on_the_gpu_is_listed_and_takes_its_share(machine: Machine) -> None:
    machine.gpu(7).set(foreign_pid=4242, foreign_share=0.5, foreign_memory_bytes=7 * GIB)
    process = start(
        machine,
        7,
        """
        began = time.monotonic()
        kernel(0.1)
        rt.cudaDeviceSynchronize()
        tell(seconds=time.monotonic() - began, pid=os.getpid())
        for _ in range(1000):
            kernel(0.02)
        rt.cudaDeviceSynchronize()
        """,
    )
    own = told(process)
    time.sleep(0.6)
    try:
        seen = observe(
            machine,
            """
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByIndex(7)
            print(json.dumps([{one.pid: one.usedGpuMemory for one in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)},
                              {one.pid: one.smUtil for one in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)},
                              nvml.nvmlDeviceGetMemoryInfo(gpu).used]))
            """,
        )
    finally:
        process.kill()
        process.communicate()
    assert own["seconds"] >= 0.2
    assert seen[0]["4242"] == 7 * GIB
    assert seen[0][str(own["pid"])] > 0
    assert seen[1]["4242"] == 45
    assert 30 <= seen[1][str(own["pid"])] <= 46
    assert seen[2] > 7 * GIB


def test_a_killed_rank_hangs_nobody_for_good_and_its_gpu_goes_idle(machine: Machine) -> None:
    program = """
    comm = communicator(rank, size, "killed")
    all_reduce(comm, 2**20)
    rt.cudaDeviceSynchronize()
    tell(ready=1)
    if rank == 1:
        kernel(300.0)
        rt.cudaDeviceSynchronize()
    all_reduce(comm, 2**20)
    rt.cudaDeviceSynchronize()
    """
    with ranks(machine, range(3), program) as started:
        for process in started:
            told(process)
        time.sleep(0.2)
        started[1].send_signal(signal.SIGKILL)
        started[1].wait(5)
        time.sleep(0.4)
        before = machine.gpu(1).get("kernel_s")
        time.sleep(0.3)
        assert machine.gpu(1).get("kernel_s") == before
        assert started[0].poll() is None  # waits in its collective kernel, as on a real machine
        begin = machine.gpu(0).get("kernel_s")
        time.sleep(0.3)
        assert machine.gpu(0).get("kernel_s") - begin > 0.2
        started[0].terminate()
        assert started[0].wait(5) == -signal.SIGTERM
    # And the next job starts.
    again = """
    comm = communicator(rank, size, "again")
    assert all_reduce(comm, 2**20) == 0
    assert rt.cudaDeviceSynchronize() == 0
    tell(ok=1)
    """
    with ranks(machine, range(3), again) as started:
        assert [told(process)["ok"] for process in started] == [1, 1, 1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_killed_or_stopped_while_it_holds_a_lock_blocks_nobody(machine: Machine, how: signal.Signals) -> None:
    # A handle of NVML is the address of the GPU's part of the state, which its lock begins.
    program = "import ctypes, pynvml, sys, time\npynvml.nvmlInit()\ncore = ctypes.CDLL('libgpusim.so')\n"
    program += "core.gs_lock(pynvml.nvmlDeviceGetHandleByIndex(2))\nprint('held', flush=True)\ntime.sleep(60)\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | machine.environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(how)
        began = time.monotonic()
        machine.gpu(2).set(speed=0.5)
        assert machine.gpu(2).get("speed") == 0.5
        assert time.monotonic() - began < 10
    finally:
        holder.kill()
        holder.communicate()


def test_pipeline_stages_send_and_receive(machine: Machine) -> None:
    program = """
    comm = communicator(rank, size, "pipe")
    began = time.monotonic()
    if rank == 0:
        kernel(0.1)
        assert nccl.ncclSend(None, 2**20, 7, 1, comm, None) == 0
    else:
        assert nccl.ncclRecv(None, 2**20, 7, 0, comm, None) == 0
    assert rt.cudaDeviceSynchronize() == 0
    nccl.ncclGroupStart()
    nccl.ncclSend(None, 17, 7, 1 - rank, comm, None)
    nccl.ncclRecv(None, 17, 7, 1 - rank, comm, None)
    assert nccl.ncclGroupEnd() == 0
    assert rt.cudaDeviceSynchronize() == 0
    tell(seconds=time.monotonic() - began)
    """
    with ranks(machine, range(2), program) as started:
        assert min(told(process)["seconds"] for process in started) > 0.05


def mounted() -> list[str]:
    """What is mounted here, but for the hosts of labs that run beside."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if "rslab" not in line]


def test_the_observer_sees_the_pci_tree_and_ports_and_leaves_nothing(machine: Machine) -> None:
    mounts = mounted()
    machine.gpu(2).set(pcie_width=8, pcie_gen=4, pcie_replay_hz=1e6)
    machine.nic(3).set(speed_hz=12.5e9, symbol_error_hz=1e6)
    machine.nic(6).set(state="down")
    time.sleep(0.4)
    seen = observe(
        machine,
        """
        from rankscope.probes.pci.devices import read_pci
        from rankscope.probes.ports.reader import read_ports
        gpus = [one for one in read_pci() if one.kind == "gpu"]
        nics = [one for one in read_pci() if one.vendor == 0x15B3]
        ports = read_ports(interfaces=False)
        switch = lambda address: os.path.realpath("/sys/bus/pci/devices/" + address).split("/")[-3]
        print(json.dumps([[one.address for one in gpus], gpus[2].link.width, gpus[2].link.speed_gts, gpus[2].able.width,
                          gpus[2].aer.correctable > 0, gpus[1].aer.correctable,
                          [switch(gpu.address) == switch(nic.address) for gpu, nic in zip(gpus, nics, strict=True)],
                          [os.path.realpath(f"/sys/class/infiniband/mlx5_{k}/device").rsplit("/", 1)[1] == nics[k].address
                           for k in range(8)],
                          [one.rate_gbps for one in ports], [one.state for one in ports],
                          ports[3].count("symbol_error") > 0, ports[2].count("symbol_error"),
                          os.path.isdir("/sys/class/net/lo"), os.path.isdir("/sys/fs/bpf"),
                          open("/sys/bus/pci/devices/0000:39:00.0/current_link_width").read()]))
        """,
    )
    addresses, width, speed, able, errors, none, pairs, places, rates, states, symbols, no_symbols, net, bpf, above = (
        seen
    )
    assert addresses[:3] == ["0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0"]
    assert (width, speed, able, above) == (8, 16.0, 16, "8\n")
    assert (errors, none) == (True, 0)
    assert pairs == places == [True] * 8
    assert rates == [400, 400, 400, 100, 400, 400, 400, 400]
    assert states == ["ACTIVE"] * 6 + ["DOWN", "ACTIVE"]
    assert (symbols, no_symbols) == (True, 0)
    assert net
    assert bpf
    assert mounted() == mounts
    assert not any((machine.folder / "scratch").iterdir())
    assert not Path("/sys/class/infiniband/mlx5_0").exists()


def test_a_killed_observer_leaves_nothing(machine: Machine) -> None:
    mounts = mounted()
    process = subprocess.Popen(
        machine.observer_command(["sh", "-c", "echo ready; sleep 60"]), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    assert mounted() == mounts
    assert not any((machine.folder / "scratch").iterdir())


def test_without_a_machine_there_is_no_driver_and_no_device(machine: Machine, tmp_path: Path) -> None:
    program = "import pynvml, ctypes\ncount = ctypes.c_int(7)\n"
    program += "print(ctypes.CDLL('libcudart.so.12').cudaGetDeviceCount(ctypes.byref(count)), count.value)\n"
    program += "try:\n    pynvml.nvmlInit()\nexcept pynvml.NVMLError as error:\n    print(error.value)\n"
    for state in (tmp_path / "none", tmp_path / "wrong"):
        (tmp_path / "wrong").write_bytes(b"not a machine" * 99)
        environment = os.environ | machine.environment() | {"GPUSIM_STATE": str(state)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == "100 0\n9\n"


def test_the_jobs_kernels_are_launched_as_cuda_13_does_and_named_by_the_code_that_does(machine: Machine) -> None:
    """By the address that a launch returns to: what it passes is a handle, which is in no code."""
    program = """
    kernels = ctypes.CDLL("libjobkernels.so")
    began = time.monotonic()
    for name in ("attention", "mlp", "adam"):
        launch = kernels[f"host_{name}"]
        launch.argtypes = (c_void_p, c_void_p)
        assert launch(byref(c_double(0.05)), None) == 0
    assert rt.cudaDeviceSynchronize() == 0
    hosts = [ctypes.cast(kernels[f"host_{name}"], c_void_p).value for name in ("attention", "mlp", "adam")]
    tell(seconds=time.monotonic() - began, hosts=hosts)
    sys.stdin.readline()
    """
    process = start(machine, 0, program)
    values = told(process)
    assert values["seconds"] >= 0.15
    names = KernelNames()
    by_function = names.kernels(process.pid, [Launched(host) for host in values["hosts"]])
    by_caller = names.kernels(process.pid, [Launched(1, host + 8) for host in values["hosts"]])
    names.close()
    for found in (by_function, by_caller):
        assert [kernel.name for _, kernel in sorted(found.items(), key=lambda one: one[1].name)] == [
            "model::adam", "model::attention<64, float>", "model::mlp<Gelu>",
        ]  # fmt: skip
    finish(process)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
