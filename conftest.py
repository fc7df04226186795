"""One tiny prepared set and two tiny trained models, made once a session for all end-to-end tests.

It lies above tests/ so that tests/conftest.py, which sets JAX up, stays free of it. Nothing here imports
JAX before a fixture runs.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent


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
        from padir.models import AutoregressiveModel, PadirModel
        from padir.network import NetworkConfig

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
        from padir.optimizers import OptimizerConfig
        from padir.train import Cadence, train

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


@pytest.fixture(scope="session")
def compilation_cache(tmp_path_factory) -> dict[str, str]:
    """JAX keeps what it compiles for the rest of the session; returns the same as environment of a child process."""
    import jax

    folder = str(tmp_path_factory.mktemp("compiled"))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, compilation_cache) -> Tiny:
    """The set and the two runs."""
    from padir.data.prepare_process import prepare_in_process
    from padir.data.records import PrepareSettings, TaskConfig
    from padir.train import Cadence

    folder = tmp_path_factory.mktemp("tiny")
    made = Tiny(folder / "data", folder / "padir", folder / "ar")
    options = {"num_train": 600, "num_validation": 32, "num_test": 40, "ambiguity": 0.5}
    settings = PrepareSettings(num_pieces=300, max_source_length=32, max_target_length=32)
    prepare_in_process(TaskConfig("tasks.synthetic", "tiny", options), made.data, settings)
    cadence = Cadence(log=20, evaluate=60, checkpoint=60)
    made.train(made.padir, num_steps=120, buckets=(16, 32), cadence=cadence)
    made.train(made.ar, "ar", num_steps=120, buckets=(16, 32), cadence=cadence)
    return made


@pytest.fixture(scope="session")
def run_python(compilation_cache):
    """Returns run(code, *arguments, cwd=None, input=None) -> CompletedProcess of a fresh one-device interpreter."""

    def run(code: str, *arguments, cwd=None, input: bytes | None = None) -> subprocess.CompletedProcess:
        environment = {**os.environ, **compilation_cache, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, input=input, capture_output=True, env=environment)

    return run
