"""The peak performance of accelerators, for model FLOPs utilisation."""

from __future__ import annotations

# Dense bfloat16 performance in 10^12 operations per second, per JAX device, by the names that JAX gives the devices.
# TPU: "Peak compute per chip (bf16)" at cloud.google.com/tpu/docs/v3, …/v4, …/v5e, …/v5p and …/v6e. These and the
# figures of GPUs below were not checked against the manufacturers' own pages, only against other sources.
# A v3 chip (123) is two devices, one per TensorCore; from v4 on, a chip is one device.
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
# GPU: NVIDIA's data sheets of the H100 and H200 give twice these figures, "with sparsity": SXM 1,979, PCIe 1,513,
# NVL 1,671. Device names are longer, e.g. "NVIDIA H100 80GB HBM3"; the first entry that is a prefix of one applies.
_GPU_TERAFLOPS = {
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H100": 989.5,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA H200": 989.5,
}


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak bfloat16 operations per second of a device; None if the device is unknown.

    Args:
      device_kind: the name of the device, from `jax.Device.device_kind`.
    """
    gpu = next((rate for name, rate in _GPU_TERAFLOPS.items() if device_kind.startswith(name)), None)
    rate = _TPU_TERAFLOPS.get(device_kind, gpu)
    return None if rate is None else 1e12 * rate
