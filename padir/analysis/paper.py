"""The paper's Tables 4.4 and 4.5, measured on a translation model with 6+6 layers and 8 heads."""

from __future__ import annotations

# For each statistic: (pairs that stutter, other pairs), each as (mean, standard deviation) or (probability,). The
# paper does not say whether its probabilities are for each head or for the mean of the heads; we assume each head.
Printed = tuple[float, ...]
PAPER: dict[str, tuple[Printed, Printed]] = {
    "self_min": ((0.0004, 0.0007), (0.0005, 0.0007)),
    "self_avg": ((0.032, 0.023), (0.033, 0.025)),
    "self_max": ((0.16, 0.11), (0.17, 0.12)),
    "self_top1": ((0.20,), (0.17,)),
    "self_top2": ((0.39,), (0.37,)),
    "tv_min": ((0.06, 0.05), (0.11, 0.10)),
    "tv_avg": ((0.13, 0.09), (0.23, 0.14)),
    "tv_max": ((0.23, 0.15), (0.35, 0.18)),
    "cosine_min": ((0.01, 0.01), (0.04, 0.08)),
    "cosine_avg": ((0.10, 0.06), (0.20, 0.11)),
    "cosine_max": ((0.25, 0.11), (0.38, 0.12)),
    "cross_top1": ((0.57,), (0.40,)),
    "cross_top2": ((0.89,), (0.81,)),
}
