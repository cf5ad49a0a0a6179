"""NVIDIA GPUs through NVML, GPM and the Xids they report."""
