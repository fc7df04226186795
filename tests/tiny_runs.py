"""A tiny prepared set and tiny models for end-to-end tests.

Subprocesses import it, too: nothing here imports JAX before it is called.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tiny:
    """A prepared set of the embedded pair (431 train, 32 validation, 40 test pairs; at most 32 tokens) and two runs.

    Attributes:
      data: the prepared set.
      padir: run directory of a PaDIR model, 120 steps.
      ar: run directory of an autoregressive model, 120 steps.
    """

    data: Path
    padir: Path
    ar: Path

    @staticmethod
    def model(kind: str = "padir", **network):
        """Returns a model factory, as `train` takes it: d 32, 1+1 layers, at most 32 tokens."""
        from padir.models.autoregressive import AutoregressiveModel
        from padir.models.padir import PadirModel
        from padir.nn.network import NetworkConfig

        config = NetworkConfig(
            embed_dim=32,
            num_heads=2,
            head_dim=16,
            mlp_dim=64,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_positions=32,
            dropout_rate=0.0,
        )
        config = dataclasses.replace(config, **network)
        if kind == "padir":
            return lambda ids: PadirModel(ids, config, 32, 32)
        causal = dataclasses.replace(config, causal=True, positional_attention=False)
        return lambda ids: AutoregressiveModel(ids, causal, 32, 32)

    def train(self, run_dir, kind: str = "padir", **changes):
        """Trains, with one bucket and 12 steps unless told otherwise; returns the final state."""
        from padir.training.optimizers import OptimizerConfig
        from padir.training.train import Cadence, train

        arguments = {
            "data_dir": str(self.data),
            "model": self.model(kind),
            "num_steps": 12,
            "batch_size": 16,
            "buckets": (32,),
            "optimizer": OptimizerConfig(peak_learning_rate=0.1, warmup_steps=4),
            "cadence": Cadence(log=4, evaluate=0, checkpoint=0),
        }
        return train(run_dir=str(run_dir), **arguments | changes)
