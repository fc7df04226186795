"""What a benchmark compares: trained models, or models of a given size with untrained weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from padir.benchmark.work import rows_per_source
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskLinear
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.inference.decoder import Decoder
from padir.inference.translator import Translator, load
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DecodeConfig, Model, decoding_model, default_decode
from padir.models.rescoring import Rescorer
from padir.nn.fastest_type import AUTO
from padir.nn.flops import Cost
from padir.nn.weights import check_compute_type
from padir.types import TokenIds


@dataclass(frozen=True)
class System:
    """One line of a benchmark: a model and how it decodes.

    Attributes:
      name: what tables call it. None, for untrained weights only: `described` of its model and decode.
      run_dir: a trained model, as `padir.load` opens it.
      model: makes a model of given token ids, whose weights then are random, in place of `run_dir`.
      verify_with: an autoregressive model, as `padir.load` opens it, that verifies the drafts of `run_dir`.
      rescore_with: likewise, that ranks the hypotheses of `run_dir`.
      decode: how it decodes; the model's default if None.
      compute_type: 'bfloat16', 'int8' or 'auto' to round the factors of products with weights; see `padir.load`.
      quality: JSON of `padir evaluate` of the same decode, for the picture of quality against latency.
    """

    name: str | None = None
    run_dir: str | None = None
    verify_with: str | None = None
    rescore_with: str | None = None
    model: Callable[[TokenIds], Model] | None = None
    decode: DecodeConfig | None = None
    compute_type: str | None = None
    quality: str | None = None

    def __post_init__(self):
        if (self.run_dir is None) == (self.model is None):
            raise PadirError(f"System.run_dir: system {self.name!r} needs either run_dir or model")
        if (self.verify_with is not None or isinstance(self.decode, Verified)) and self.run_dir is None:
            raise PadirError(f"System.verify_with: verified decoding in system {self.name!r} needs a trained run_dir")
        if self.rescore_with is not None and self.run_dir is None:
            raise PadirError(f"System.rescore_with: rescoring in system {self.name!r} needs a trained run_dir")
        if self.name is None:
            if self.model is None:
                raise PadirError(f"System.name: give the system of {self.run_dir} a name")
            # Token ids decide neither the kind of a model nor its layers; some noise needs many of them.
            model = self.model(TokenIds(32_000))
            decode = default_decode(model) if self.decode is None else self.decode
            object.__setattr__(self, "name", described(model, decode, self.compute_type))
        if self.compute_type != AUTO:
            check_compute_type(f"System.compute_type of system {self.name!r}", self.compute_type)


def described(model: Model, decode: DecodeConfig, compute_type: str | None) -> str:
    """What tables call a system: 'AR 12-1 beam 5', 'PaDIR, 4 steps, 5 hypotheses, candidates, 1 kept, int8'."""
    layers = (model.network.num_encoder_layers, model.network.num_decoder_layers)
    shape = "" if layers[0] == layers[1] else f" {layers[0]}-{layers[1]}"
    if isinstance(decode, BeamSearch):
        parts = [f"AR{shape} beam {decode.beam_size}"]
    elif isinstance(decode, Autoregressive):
        parts = [f"AR{shape} {'sampled' if decode.sampling.temperature > 0 else 'greedy'}"]
    else:
        parts = _refinement_parts(decode, shape)
    return ", ".join(parts if compute_type is None else [*parts, compute_type])


def _refinement_parts(decode: Refinement, shape: str) -> list[str]:
    steps, hypotheses = decode.num_steps, decode.hypotheses_per_source
    mask_predict = decode.rewrite_only_remasked and isinstance(decode.remask, RemaskLinear)
    kind = "mask-predict" if mask_predict else "adaptive PaDIR" if decode.remask.accepts else "PaDIR"
    if decode.order is not None:
        kind = "DisCo"
    parts = [kind + shape, f"{steps} step{'s' if steps > 1 else ''}"]
    if not mask_predict or hypotheses > 1:
        parts.append("1 hypothesis" if hypotheses == 1 else f"{hypotheses} hypotheses")
    if decode.likeliest_first:
        parts.append("likeliest first")
    if decode.candidates is not None:
        parts.append("shared candidates" if decode.shared_candidates else "candidates")
    if decode.keep_hypotheses is not None:
        parts.append(f"{decode.keep_hypotheses} kept")
    if decode.active_positions is not None:
        parts.append(f"{decode.active_positions} active")
    return parts


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
        """The one that decodes so; see `decoding_model`."""
        return decoding_model(self.decoder.model, self.decode)

    @property
    def is_autoregressive(self) -> bool:
        """Whether it writes one token a step."""
        return isinstance(self.model, AutoregressiveModel)

    @property
    def rescorer(self) -> Model | None:
        """The other model that ranks its hypotheses."""
        helper = self.decoder.helper
        return helper.model if isinstance(helper, Rescorer) else None

    @property
    def hypotheses(self) -> int:
        """Decoder rows per source."""
        return rows_per_source(self.decode)

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
    """Opens systems by name; those of equal models with equal helpers and compute types share a decoder.

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
    decoders: dict[tuple[str | Model, str | None, str | None, str | None], Decoder] = {}
    opened = {}
    for system in systems:
        model = None if system.model is None else system.model(TokenIds(num_pieces))
        key = (model or system.run_dir, system.verify_with, system.rescore_with, system.compute_type)
        if key not in decoders:
            decoders[key] = _opened(system, model)
        try:
            decode = decoders[key].checked(system.decode)
        except PadirError as error:
            raise PadirError(f"system {system.name!r}: {error}") from error
        opened[system.name] = Opened(decoders[key], decode)
    return opened


def _opened(system: System, model: Model | None) -> Decoder:
    if model is not None:
        return Decoder(model, jax.jit(model.init)(0), compute_type=system.compute_type)
    helpers = {"verify_with": system.verify_with, "rescore_with": system.rescore_with}
    return load(system.run_dir, **helpers, compute_type=system.compute_type)
