"""All targets."""

from campaignkit.fuzz.targets import answers, border, counters, elf, kernel, memory, processes, stores, windows

TARGETS = (
    *elf.TARGETS,
    *kernel.TARGETS,
    *processes.TARGETS,
    *counters.TARGETS,
    *memory.TARGETS,
    *answers.TARGETS,
    *border.TARGETS,
    *windows.TARGETS,
    *stores.TARGETS,
)
