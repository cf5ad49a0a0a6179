"""All targets."""

from fuzzkit.targets import answers, counters, elf, kernel, memory, processes, stores, windows

TARGETS = (
    *elf.TARGETS,
    *kernel.TARGETS,
    *processes.TARGETS,
    *counters.TARGETS,
    *memory.TARGETS,
    *answers.TARGETS,
    *windows.TARGETS,
    *stores.TARGETS,
)
