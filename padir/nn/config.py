"""Size and shape of the network."""

from __future__ import annotations

from dataclasses import dataclass

from padir.checks import whole
from padir.errors import PadirError
from padir.nn.layers import ACTIVATIONS, MAX_DISTANCE

_SIZES = (
    *("vocab_size", "embed_dim", "num_heads", "head_dim", "mlp_dim"),
    *("num_encoder_layers", "num_decoder_layers", "max_positions", "relative_buckets"),
)


@dataclass(frozen=True)
class NetworkConfig:
    """Size and shape of the network. The defaults are the paper's base model, with a parallel decoder unless `causal`.

    Attributes:
      vocab_size: padded vocabulary size V.
      causal: True for an autoregressive decoder, False for a parallel one.
      positional_attention: whether decoder layers attend by position (Gu et al. 2018); parallel only.
      disentangled_context: whether each target position reads only the tokens that it is told to observe, never its own
        (DisCo: Kasai et al. 2020); parallel only. See `decode_plan.DecodePlan.observing`.
      max_positions: how many target positions have a learnt embedding (positional attention).
      relative_buckets: how many numbers a head has for distances between positions; T5 has 32. A causal decoder tells
        distances below half of them apart exactly, the encoder and a parallel decoder those below a quarter. Farther
        ones share buckets.
      dtype: activations' type, 'float32' or 'bfloat16'; parameters, logits and loss are float32.
      float32_attention_logits: compute attention logits and their softmax in float32 rather than in `dtype`.
    """

    vocab_size: int = 32_128
    embed_dim: int = 512
    num_heads: int = 8
    head_dim: int = 64
    mlp_dim: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    mlp_activation: str = "relu"
    tied_logits: bool = True
    causal: bool = False
    positional_attention: bool = True
    disentangled_context: bool = False
    max_positions: int = 256
    relative_buckets: int = 32
    dropout_rate: float = 0.1
    dtype: str = "float32"
    float32_attention_logits: bool = True

    def __post_init__(self):
        for name in _SIZES:
            whole(f"NetworkConfig.{name}", getattr(self, name))
        if self.mlp_activation not in ACTIVATIONS:
            raise PadirError(
                f"NetworkConfig.mlp_activation: unknown {self.mlp_activation!r}; choose one of {', '.join(ACTIVATIONS)}"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise PadirError(f"NetworkConfig.dtype: unknown {self.dtype!r}; choose float32 or bfloat16")
        if self.causal and self.disentangled_context:
            raise PadirError("NetworkConfig: disentangled_context needs a parallel decoder; set causal=False")
        if not 4 <= self.relative_buckets < 2 * MAX_DISTANCE:
            raise PadirError(
                f"NetworkConfig.relative_buckets: {self.relative_buckets} is not from 4 to {2 * MAX_DISTANCE - 1}; "
                "T5 has 32"
            )
        if not 0.0 <= self.dropout_rate < 1.0:
            raise PadirError(f"NetworkConfig.dropout_rate: {self.dropout_rate} is not in [0, 1)")
