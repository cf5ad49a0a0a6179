"""The GPU lab: an emulated machine with GPUs and NICs, a training job on it, faults with known answers."""
