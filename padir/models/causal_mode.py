"""The causal mode of a PaDIR model: the same network, read from left to right.

A PaDIR model that also learns the causal objective (`PadirModel.causal_stage`) is two models in one set of weights. In
its causal mode each position attends to those before it only, positional attention is left out, and the biases of
relative positions are a table of its own, because a causal decoder spends all of its buckets on the past. With
`PadirModel.causal_layers` the causal mode has a decoder of its own, usually of few layers; both share the encoder and
the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

from padir.models.autoregressive import AutoregressiveModel
from padir.nn.length import prepend_length_token
from padir.nn.network import EncoderDecoder
from padir.types import Array, PyTree

# The causal mode's biases of relative positions, or its own decoder, among the parameters of the PaDIR model.
RELATIVE_POSITIONS = "causal_relpos_bias"
CAUSAL_DECODER = "causal_decoder"
_PARALLEL_ONLY = ("positional_attention", "pre_positional_attention_layer_norm")


@dataclass(frozen=True)
class CausalMode(AutoregressiveModel):
    """An autoregressive model in the weights of a PaDIR model.

    Attributes:
      ids, network, max_source_length, max_target_length, loss, freeze: see `AutoregressiveModel`.
      length_token: whether the encoder reads a [LENGTH] token before the source.
    """

    length_token: bool = True

    @property
    def source_prefix(self) -> int:
        """One for the [LENGTH] token."""
        return int(self.length_token)

    def encode(self, network: EncoderDecoder, source: Array, dropout_key: Array | None = None) -> Array:
        """Source [B, Ls] int32 → encoder output [B, Ls, E], that of the PaDIR model."""
        if not self.length_token:
            return network.encode(source, dropout_key)
        return network.encode(prepend_length_token(source, self.ids.length_id), dropout_key)[:, 1:]


def causal_params(params: PyTree, positions: bool = False) -> PyTree:
    """The parameters of the causal mode among those of a PaDIR model: nested dicts of the same arrays.

    `positions` says whether that mode has positional attention.
    """
    network = params["network"]
    if CAUSAL_DECODER in params:
        return {"network": {**network, "decoder": params[CAUSAL_DECODER]}}
    if positions:
        return {"network": {**network, "decoder": network["decoder"] | {"relpos_bias": params[RELATIVE_POSITIONS]}}}
    layers = {
        number: {name: part for name, part in layer.items() if name not in _PARALLEL_ONLY}
        for number, layer in network["decoder"]["layers"].items()
    }
    decoder = {name: part for name, part in network["decoder"].items() if name != "abs_pos_embed"}
    decoder |= {"layers": layers, "relpos_bias": params[RELATIVE_POSITIONS]}
    return {"network": {**network, "decoder": decoder}}
