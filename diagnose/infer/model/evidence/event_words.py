"""Counters of events in words, for evidence and notes."""

from __future__ import annotations

_WORDS = {
    "gpu.ecc_uncorrected": "uncorrected memory errors", "gpu.ecc_corrected": "corrected memory errors",
    "gpu.rows_remapped": "remapped rows of memory", "gpu.remap_failed": "failed remaps of memory",
    "gpu.remap_pending": "remaps of memory that wait for a reset", "gpu.retired_pages": "retired pages of memory",
    "gpu.sm_clock_hz": "SM clock", "pcie.replays": "PCIe replays", "pcie.aer_correctable": "corrected PCIe errors (AER)",
    "pcie.aer_nonfatal": "uncorrected PCIe errors (AER)", "pcie.aer_fatal": "fatal PCIe errors (AER)",
    "pcie.speed_gts": "PCIe speed", "pcie.width": "PCIe width", "nvlink.errors": "NVLink errors",
    "nvlink.links_down": "NVLinks that are down", "nic.symbol_errors": "symbol errors", "nic.crc_errors": "CRC errors",
    "nic.link_downed": "times that the link went down", "nic.retransmits": "retransmissions",
    "nic.out_of_sequence": "packets out of sequence", "nic.speed_hz": "link speed",
}  # fmt: skip


def event_words(name: str) -> str:
    """Return the words for a counter, as 'corrected PCIe errors (AER)'; without its component where no words are known."""
    return _WORDS.get(name, name.partition(".")[2].replace("_", " ") or name)
