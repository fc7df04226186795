"""What programs do differently on each platform, and which platform the program being traced is for.

All such choices are here. None changes a result by more than rounding: floats are summed and multiplied in another
order, and `rounds_weights` makes a rounding visible that the hardware does anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Choices:
    """How products and reductions are written for one platform.

    Attributes:
      weight_first_rows: up to so many rows of activations, a product takes the weight as its first operand.
      turned_weight_size: up to so many numbers, a weight is stored transposed for decoding.
      joins_queries: whether decoding computes query, key and value of self-attention as one product where many
        positions are computed at once. Where it is one, it always does.
      keeps_heads: whether attention's projections write and read heads as an axis of their products. Otherwise products
        are of all heads side by side, which are reshaped.
      masks_heads: whether a causal decoder, which mostly decodes one position at a time, keeps the heads of attention
        side by side (`MultiHeadAttention.mask_heads`).
      flattens_rows: whether a product of many rows merges all axes of its rows into one.
      pads_every_row: whether a product of one row is padded to eight rows in float32, too. In narrower types it always
        is.
      rounds_weights: whether decoding stores weights as bfloat16 if no compute type is given. True where the matrix
        unit rounds float32 factors to bfloat16 anyway.
      reduces_jointly: whether maxima and sums of exponentials are found together (`nn.reductions`).
      searches_in_groups: whether the largest of each of many long rows is first looked for among the largest of groups
        (`decoding.sampling`).
      logits_block: of so many positions decoding computes the logits at a time (`Refinement.logits_block`).
      copies_table: whether, in data-parallel training, each device uses its own copy of the token embeddings, so that
        their gradients are summed over the devices once.
      turns_in_gradients: whether gradients that add up over queries (of attention) or rows (of `nn.rounded`)
        transpose a factor before the product, not in it.
    """

    weight_first_rows: int
    turned_weight_size: int
    joins_queries: bool
    keeps_heads: bool
    masks_heads: bool
    flattens_rows: bool
    pads_every_row: bool
    rounds_weights: bool
    reduces_jointly: bool
    searches_in_groups: bool
    logits_block: int
    copies_table: bool
    turns_in_gradients: bool


# Measured by benchmarks/operand_order.py; `searches_in_groups` and `logits_block` by benchmarks/logits_block.py. Most
# choices for GPU are those for CPU, because nobody has measured others.
_CPU = Choices(
    weight_first_rows=64,
    turned_weight_size=2**17,
    joins_queries=True,
    keeps_heads=False,
    masks_heads=False,
    flattens_rows=True,
    pads_every_row=False,
    rounds_weights=False,
    reduces_jointly=False,
    searches_in_groups=True,
    logits_block=512,
    copies_table=False,
    turns_in_gradients=True,
)
_GPU = Choices(
    weight_first_rows=64,
    turned_weight_size=2**17,
    joins_queries=True,
    keeps_heads=False,
    masks_heads=False,
    flattens_rows=True,
    pads_every_row=False,
    rounds_weights=False,
    reduces_jointly=False,
    searches_in_groups=False,
    logits_block=512,
    copies_table=False,
    turns_in_gradients=False,
)
# Estimated by XLA's compiler (benchmarks/tpu_programs.py). With the axes of a product as they are, XLA fuses it with
# what reads it. A product of one row in float32 would run on the vector unit and read four bytes a weight.
_TPU = Choices(
    weight_first_rows=0,
    turned_weight_size=0,
    joins_queries=False,
    keeps_heads=True,
    masks_heads=True,
    flattens_rows=False,
    pads_every_row=True,
    rounds_weights=True,
    reduces_jointly=True,
    searches_in_groups=False,
    logits_block=2048,
    copies_table=True,
    turns_in_gradients=False,
)
OF_PLATFORM = {"cpu": _CPU, "gpu": _GPU, "cuda": _GPU, "rocm": _GPU, "tpu": _TPU}

_traced: ContextVar[str | None] = ContextVar("padir_traced_platform", default=None)


def current() -> str:
    """Returns the platform of the program being traced: that of `tracing_for`, else JAX's default backend."""
    return _traced.get() or jax.default_backend()


def choices() -> Choices:
    """Returns the choices for the platform of the program being traced. Unknown platforms are treated as GPUs."""
    return OF_PLATFORM.get(current(), _GPU)


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Context manager: functions traced inside are for `platform`, e.g. 'tpu', whatever this process runs on.

    JAX does not know of it: the same function must not be traced for two platforms by one `jax.jit`.
    """
    token = _traced.set(platform)
    try:
        yield
    finally:
        _traced.reset(token)
