"""What decoding computes once for all requests: whatever depends on the parameters alone."""

from __future__ import annotations

from flax import nnx

from padir.nn.layers import Dense
from padir.nn.network import EncoderDecoder, NetworkConfig

# Numbers in a layer's table of how each position attends to each other: 8 MB.
_LARGEST_POSITIONAL_TABLE = 2**21


def tabulates_positions(config: NetworkConfig) -> bool:
    """Whether `prepare` tabulates how position attends to position: if it does, and there are not very many."""
    return config.positional_attention and config.num_heads * config.max_positions**2 <= _LARGEST_POSITIONAL_TABLE


def prepare(network: EncoderDecoder, compute_type: str | None = None) -> None:
    """Puts what decoding needs in the place of the parameters that it is computed from.

    That is how position attends to position (unless there are very many), and weights as they are multiplied with
    fastest: query, key and value of self-attention joined, and so the keys and values of cross-attention in all layers;
    small ones turned; all in the type of activations. What comes out is the same but for the order in which floats are
    added up. With a `compute_type` of `weights.COMPUTE_TYPES` the factors of products with weights are rounded to it,
    the embeddings that are looked up are not.
    """
    config, decoder = network.config, network.decoder
    if tabulates_positions(config):
        decoder.positional_table = nnx.Param(decoder.positional_logits(config.max_positions))
        del decoder.abs_pos_embed
        for layer in decoder.layers:
            del layer.pre_positional_attention_layer_norm
            del layer.positional_attention.query, layer.positional_attention.key
    decoder.join_source(compute_type)
    for attention in [layer.attention for layer in network.encoder.layers] + [
        layer.self_attention for layer in decoder.layers
    ]:
        attention.join(compute_type)
    for part in (network.encoder, decoder):
        for _, module in list(nnx.iter_modules(part)):
            if isinstance(module, Dense):
                module.prepare(compute_type)
    if not config.tied_logits:
        # Candidates' rows of it are read.
        network.logits_dense.prepare(compute_type, keep_weight=True)
    network.token_embedder.prepare(compute_type, attended=config.tied_logits)
