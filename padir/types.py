"""Names shared by every layer: mesh axes, reserved token ids, array aliases.

Axes in docstrings: B batch (sources), K hypotheses per source, N = B·K rows of a decoder batch,
Ls source length, Lt target length, E model width, H heads, D head width, V padded vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

Array = jax.Array
PyTree = Any

# Token ids that every vocabulary starts with (T5 convention; docs/concepts/data_contract.md).
PAD_ID = 0
EOS_ID = 1
UNK_ID = 2

# Mesh axes, outermost first: between slices, within a slice, across a layer.
REPLICA_AXIS = "replica"
DATA_AXIS = "data"
MODEL_AXIS = "model"
MESH_AXES = (REPLICA_AXIS, DATA_AXIS, MODEL_AXIS)

# Added to attention logits where a key must not be seen. Finite, so that a row that sees no key
# at all (an empty row that only pads a batch) stays finite instead of turning into NaN.
MASKED_LOGIT = -1e10


class RowShare(NamedTuple):
    """Which rows of a batch a process holds: some of the blocks that it divides into; by default all of it.

    Attributes:
      blocks: their numbers, ascending.
      of: how many there are, of the same size.
    """

    blocks: tuple[int, ...] = (0,)
    of: int = 1


@dataclass(frozen=True)
class TokenIds:
    """Where the reserved ids of a vocabulary sit (docs/concepts/data_contract.md).

    Attributes:
      num_pieces: SentencePiece pieces, ids [0, num_pieces); what a model may write is among them.
      extra_ids: reserved ids on top of them.
      rows: of the embedding table, where a model from elsewhere has another number than ours would have.
    """

    num_pieces: int
    extra_ids: int = 100
    rows: int | None = None

    @property
    def unpadded_size(self) -> int:
        return self.num_pieces + self.extra_ids

    @property
    def vocab_size(self) -> int:
        """The padded size V: the next multiple of 128, which divides well over devices and vector lanes, or `rows`."""
        return self.rows or -(-self.unpadded_size // 128) * 128

    @property
    def mask_id(self) -> int:
        return self.unpadded_size - 1

    @property
    def bos_id(self) -> int:
        return self.unpadded_size - 2

    @property
    def length_id(self) -> int:
        return self.unpadded_size - 3
