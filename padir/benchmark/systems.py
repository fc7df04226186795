"""What a benchmark compares: trained models, or models of a given size with untrained weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.inference.translator import Decoder, Translator, load
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DecodeConfig, Model
from padir.nn.flops import Cost
from padir.nn.weights import check_compute_type
from padir.types import TokenIds


@dataclass(frozen=True)
class System:
    """One line of a benchmark: a model and how it decodes.

    Attributes:
      name: what tables call it.
      run_dir: a trained model, as `padir.load` opens it.
      model: makes a model of given token ids, whose weights then are random, in place of `run_dir`.
      decode: how it decodes; the model's default if None.
      compute_type: 'bfloat16' or 'int8' to round the factors of products with weights; see `padir.load`.
      quality: JSON of `padir evaluate` of the same decode, for the picture of quality against latency.
    """

    name: str
    run_dir: str | None = None
    model: Callable[[TokenIds], Model] | None = None
    decode: DecodeConfig | None = None
    compute_type: str | None = None
    quality: str | None = None

    def __post_init__(self):
        if (self.run_dir is None) == (self.model is None):
            raise PadirError(f"System.run_dir: system {self.name!r} needs either run_dir or model")
        check_compute_type(f"System.compute_type of system {self.name!r}", self.compute_type)


@dataclass(frozen=True)
class Opened:
    """A system ready to be asked.

    Attributes:
      decoder: a `Translator` where the model is trained.
      decode: checked against its model.
    """

    decoder: Decoder
    decode: DecodeConfig

    @property
    def model(self) -> Model:
        """The decoder's."""
        return self.decoder.model

    @property
    def is_autoregressive(self) -> bool:
        """Whether it writes one token a step."""
        return isinstance(self.model, AutoregressiveModel)

    @property
    def hypotheses(self) -> int:
        """Decoder rows per source."""
        if isinstance(self.decode, Refinement):
            return self.decode.hypotheses_per_source
        return self.decode.rows_per_source

    def bytes(self, cost: Cost) -> int:
        """What is read for some work, at least."""
        sizes = (jnp.dtype(dtype).itemsize for dtype in (self.decoder.product_type, self.model.network.dtype))
        return cost.bytes(*sizes)

    def translator(self, name: str) -> Translator:
        """The decoder; raises PadirError if it has no vocabulary to make text of its ids."""
        if not isinstance(self.decoder, Translator):
            raise PadirError(f"system {name!r}: untrained weights make no text; give run_dir, or a workload of lengths")
        return self.decoder


def open_systems(systems: Sequence[System], num_pieces: int) -> dict[str, Opened]:
    """Opens systems by name; those of one `run_dir`, or of equal untrained models, share a decoder.

    Those of different compute types do not.

    Args:
      systems: at least one.
      num_pieces: of the vocabulary of untrained models.

    Raises:
      PadirError: no system, two of one name, a model that cannot be opened, or a decode that does not fit its model.
    """
    if not systems:
        raise PadirError("systems: name at least one")
    if len({system.name for system in systems}) < len(systems):
        raise PadirError("systems: two have the same name")
    decoders: dict[tuple[str | Model, str | None], Decoder] = {}
    opened = {}
    for system in systems:
        model = None if system.model is None else system.model(TokenIds(num_pieces))
        key, options = (model or system.run_dir, system.compute_type), {"compute_type": system.compute_type}
        if key not in decoders:
            decoders[key] = load(system.run_dir, **options) if model is None else _untrained(model, **options)
        try:
            decode = decoders[key].checked(system.decode)
        except PadirError as error:
            raise PadirError(f"system {system.name!r}: {error}") from error
        opened[system.name] = Opened(decoders[key], decode)
    return opened


def _untrained(model: Model, compute_type: str | None) -> Decoder:
    return Decoder(model, jax.jit(model.init)(0), compute_type=compute_type)
