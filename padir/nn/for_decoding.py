"""What decoding computes once, when a model is opened: everything that depends on the parameters alone."""

from __future__ import annotations

from flax import nnx

from padir.nn.attention import MultiHeadAttention
from padir.nn.layers import Dense
from padir.nn.network import Decoder, EncoderDecoder, NetworkConfig

# Numbers in a layer's table of how each position attends to each other: 8 MB.
_LARGEST_POSITIONAL_TABLE = 2**21


def tabulates_positions(config: NetworkConfig) -> bool:
    """Whether `prepare` tabulates the logits of positional attention: if there is any and the table is small."""
    return config.positional_attention and config.num_heads * config.max_positions**2 <= _LARGEST_POSITIONAL_TABLE


def prepare(network: EncoderDecoder, compute_type: str | None = None) -> None:
    """Replaces parameters by what decoding computes from them.

    The logits of positional attention become a table, unless it would be too large. Weights take the form that products
    read fastest: query, key and value of self-attention are joined, and so are the keys and values of cross-attention
    of all layers; small weights are transposed; all have the type of activations. What is done on which platform is in
    `runtime.platforms`. Results change only by the order in which floats are added up. With a `compute_type` of
    `weights.COMPUTE_TYPES` the factors of products with weights are rounded to it; embeddings that are looked up
    are not.
    """
    prepare_decoder(network.decoder, network.config, compute_type)
    for layer in network.encoder.layers:
        layer.attention.join(compute_type)
        layer.attention.keep_heads(compute_type)
    _prepare_products(network.encoder, compute_type)
    if not network.config.tied_logits:
        # Candidates' rows of it are read.
        network.logits_dense.prepare(compute_type, keep_weight=True)
    network.token_embedder.prepare(compute_type, attended=network.config.tied_logits)


def prepare_decoder(decoder: Decoder, config: NetworkConfig, compute_type: str | None) -> None:
    """What `prepare` does with a decoder, that of a network with this configuration."""
    if tabulates_positions(config):
        decoder.positional_table = nnx.Param(decoder.positional_logits(config.max_positions))
        del decoder.abs_pos_embed
        for layer in decoder.layers:
            del layer.pre_positional_attention_layer_norm
            del layer.positional_attention.query, layer.positional_attention.key
    decoder.join_source(compute_type)
    for layer in decoder.layers:
        if not config.disentangled_context:
            # There queries are not made of what keys and values are made of.
            layer.self_attention.join(compute_type, causal=config.causal)
        for _, attention in nnx.iter_children(layer):
            if isinstance(attention, MultiHeadAttention):
                if config.causal:
                    attention.mask_heads()
                else:
                    attention.keep_heads(compute_type)
    _prepare_products(decoder, compute_type)


def _prepare_products(part: nnx.Module, compute_type: str | None) -> None:
    for _, module in list(nnx.iter_modules(part)):
        if isinstance(module, Dense):
            module.prepare(compute_type)
