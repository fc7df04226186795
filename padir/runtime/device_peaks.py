"""What accelerators can compute at most, for model FLOPs utilisation."""

from __future__ import annotations

# bfloat16 operations a second, dense, of what JAX calls one device: 10^12. By the names JAX has for them.
# TPU: to be found as "Peak compute per chip (bf16)" at cloud.google.com/tpu/docs/v3, …/v4, …/v5e, …/v5p, …/v6e; taken
# from memory and compared with others' pages, not with these (no network), as those of GPUs below. A v3 chip
# (123) is two devices, one a TensorCore; from v4 on a chip is one.
_TPU_TERAFLOPS = {
    "TPU v3": 123.0 / 2,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
}
# GPU: the data sheets of NVIDIA's H100 and H200 Tensor Core GPUs give twice these figures, "with sparsity": SXM 1,979,
# PCIe 1,513, NVL 1,671 each. The names go on, "NVIDIA H100 80GB HBM3"; the first that one begins with is meant.
_GPU_TERAFLOPS = {
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H100": 989.5,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA H200": 989.5,
}


def peak_flops(device_kind: str) -> float | None:
    """bfloat16 operations a second of a device, given its `jax.Device.device_kind`; None if it is not in the tables."""
    gpu = next((rate for name, rate in _GPU_TERAFLOPS.items() if device_kind.startswith(name)), None)
    rate = _TPU_TERAFLOPS.get(device_kind, gpu)
    return None if rate is None else 1e12 * rate
