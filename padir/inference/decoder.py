"""A model ready to decode token ids: what `Translator` and the benchmarks are made of."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Self

import jax
import numpy as np
from jax.sharding import Mesh

from padir import rng
from padir.decoding.automaton import Automaton
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.inference.program import Program, continuation_program, decode_program, unpack
from padir.models import continuation, guided, padir_decoding, verification
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import DecodingParams
from padir.models.guided import Judge
from padir.models.helper import Helper
from padir.models.kinds import DECODE_CONFIGS, DecodeConfig, Model, decoding_model, default_decode
from padir.models.padir import PadirModel
from padir.models.rescoring import Rescorer
from padir.models.verification import Verifier
from padir.nn import fastest_type
from padir.runtime import host_memory, sharding
from padir.types import Array, PyTree

# Encoder inputs are padded to the smallest of these lengths that fits, up to the model's longest source.
SOURCE_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Decoder:
    """A model with its parameters, ready to decode token ids.

    Each combination of rows, padded source length and decode configuration is compiled at its first use. Rows are
    rounded up to a power of two, and source lengths to `SOURCE_BUCKETS`. A refinement is compiled with one branch for
    each of its target buckets, so fewer buckets compile faster.

    Attributes:
      model: the configuration of the model.
      params: the trained parameters, nested dict of float32 arrays on all devices of this process.
      helper: the rescorer or verifier, with its parameters on all devices; None without one.
      verifies_itself: whether the helper is the model's own causal mode.
      judge: who judges what is generated under a verifier (`Guided`), on all devices; None without one.
      compute_type: the type that the factors of products with weights are rounded to; None if they are not rounded.
    """

    def __init__(
        self,
        model: Model,
        params: PyTree,
        *,
        seed: int = 0,
        helper: Helper | None = None,
        judge: Judge | None = None,
        compute_type: str | None = None,
    ):
        """Places `params` on all devices of this process.

        On CPU, the process also keeps freed memory for reuse; see `host_memory`.

        Args:
          model: the configuration of the model.
          params: its parameters.
          seed: the seed of random decoding.
          helper: an autoregressive model that helps a parallel one: a rescorer ranks its hypotheses in place of the
            model's own scores, a verifier verifies its drafts (`Verified`).
          judge: of generation under a verifier.
          compute_type: one of `weights.COMPUTE_TYPES`, or 'auto' for what is fastest here. The factors of products with
            the weights of the model and of a verifier, but not of a rescorer, are rounded to it.

        Raises:
          PadirError: the helper has another vocabulary, `model` is autoregressive and takes none, or `compute_type` is
            unknown.
        """
        compute_type = fastest_type.resolved("compute_type", compute_type)
        self.verifies_itself = helper is None and isinstance(model, PadirModel) and model.causal_stage
        if self.verifies_itself:
            helper = Verifier.own(model, params)
        if helper is not None:
            if isinstance(model, AutoregressiveModel):
                raise PadirError(
                    f"{helper.option}: works on the hypotheses of a parallel model, but this model is autoregressive; "
                    f"{helper.task} needs the parallel model as run_dir and the autoregressive one beside it"
                )
            helper.check(model.ids)
        self.model = model
        self.compute_type = compute_type
        self._mesh = own_mesh()
        if self._mesh.devices.flat[0].platform == "cpu":
            host_memory.keep_freed()
        everywhere = sharding.replicated(self._mesh)
        self.params, self.helper, self.judge = jax.device_put((params, helper, judge), everywhere)
        self._decoding_params = model.for_decoding(self.params, compute_type)
        self._decoding_helper = None
        self._key = rng.stream(seed, "decode")
        # With the arrays that each program takes. `decode_program` hashes the model and decode configuration on every
        # call, which is slow.
        self._programs: dict[DecodeConfig, tuple[Program, list[Array]]] = {}
        self._lock = threading.Lock()

    @property
    def key(self) -> Array:
        """The key that every decode begins with."""
        return self._key

    def prepared(self, params: PyTree, helper: Helper | None, judge: Judge | None) -> Decoder:
        """Returns a decoder like this one of other arrays, which may be traced.

        Args:
          params: like `params`.
          helper: like `helper`; None if the model verifies itself.
          judge: like `judge`.
        """
        other = copy.copy(self)
        if self.verifies_itself:
            helper = Verifier.own(self.model, params)
        other.params, other.helper, other.judge, other._programs = params, helper, judge, {}
        other._decoding_params = self.model.for_decoding(params, self.compute_type)
        other._decoding_helper = None
        return other

    @property
    def decoding_params(self) -> DecodingParams:
        """The parameters in the form that decoding uses (`BaseModel.for_decoding`).

        Raises:
          PadirError: the decoder is closed.
        """
        params = self._decoding_params
        if params is None:
            raise PadirError("this translator is closed; open the model once more with padir.load")
        return params

    @property
    def longest_source(self) -> int:
        """The most tokens that a source may have: for the model, and for its helper if there is one."""
        models = (self.model,) if self.helper is None else (self.model, self.helper.model)
        return min(model.max_source_length for model in models)

    @property
    def product_type(self) -> str:
        """The type in which products with weights are computed: `compute_type`, or else the dtype of the network."""
        return self.compute_type or self.model.network.dtype

    @functools.cached_property
    def default_decode(self) -> DecodeConfig:
        """The default decode configuration: one object, which is checked and hashed once.

        It is verified decoding for a PaDIR model with a verifier, generation under a judge if there is one, and else
        `kinds.default_decode`.
        """
        if self.judge is not None:
            return Guided()
        if isinstance(self.helper, Verifier) and not self.verifies_itself:
            return Verified()
        return default_decode(self.model)

    def decode_ids(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        lengths: Sequence[int] | Sequence[Sequence[int]] | None = None,
        constraint: Automaton | None = None,
    ) -> Hypotheses:
        """Decodes one batch in a single round trip to the device.

        Args:
          sources: token ids of the sources, each ending in EOS.
          decode: the decode configuration, as returned by `checked`.
          lengths: the target lengths, EOS included, one per source; see `translate_ids`. For a parallel model there may
            be several per source.
          constraint: what each row of the padded batch must obey, as numpy arrays.

        Returns:
          The hypotheses as numpy arrays. Rows beyond `len(sources)` are padding.

        Raises:
          PadirError: a source is longer than the model allows, or `lengths` has the wrong shape.
        """
        rows, ways = self.padded_rows(len(sources)), self._mesh.devices.size
        longest = max(map(len, sources))
        if longest > self.longest_source:
            raise PadirError(
                f"a source of {longest} tokens is longer than the {self.longest_source} that the model allows; "
                "prepare the data with smaller maximum lengths"
            )
        width = source_width(self.model, longest)
        batch = np.zeros((rows, width), np.int32)
        for row, ids in enumerate(sources):
            batch[row, : len(ids)] = ids
        placed = jax.device_put(batch, sharding.batch_sharding(self._mesh)) if ways > 1 else batch
        decode = on_devices(decode, ways)
        # The number of refinement steps is an argument, so that 1, 4 and 10 steps share one compiled program.
        decode, steps = decode.steps_as_data if isinstance(decode, Refinement) else (decode, ())
        given = {} if constraint is None else {"constraint": constraint}
        if lengths is not None:
            shape = np.shape(lengths)
            model = decoding_model(self.model, decode)
            if shape[:1] != (len(sources),) or len(shape) > (1 if isinstance(model, AutoregressiveModel) else 2):
                raise PadirError(f"lengths have shape {shape}; give one for each of the {len(sources)} sources")
            given["lengths"] = np.ones((rows, *shape[1:]), np.int32)
            given["lengths"][: len(lengths)] = lengths
        # Threads wait for one another only until the device has its work, or a program is compiled: not twice.
        with self._lock:
            program, leaves = self._program(decode)
            packed, extras = program(leaves, placed, self._key, *steps, **given)
        found = unpack(np.asarray(packed), extras)
        if found.trace is None or not steps:
            return found
        # A program with room for more steps serves several numbers of them.
        return found.replace(trace=jax.tree.map(lambda field: field[: int(steps[0])], found.trace))

    def _program(self, decode: DecodeConfig) -> tuple[Program, list[Array]]:
        known = self._programs.get(decode)
        if known is None:
            leaves, structure = jax.tree.flatten(self.inputs(decode))
            known = decode_program(decoding_model(self.model, decode), decode, structure), leaves
            self._programs[decode] = known
        return known

    def close(self) -> None:
        """Lets go of the parameters, so that their memory is free once nobody else holds them; then it cannot decode.

        Decodes of other threads that have begun are finished. Closing once more does nothing.
        """
        with self._lock:
            self._programs.clear()
            self.params = self._decoding_params = None
            self.helper = self._decoding_helper = self.judge = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def continue_ids(
        self, source: Sequence[int], tokens: Sequence[int], clamped: Sequence[bool], decode: Refinement
    ) -> Hypotheses:
        """Refines one edited hypothesis further; see `continuation.decode`.

        Args:
          source: token ids, ending in EOS.
          tokens: the hypothesis, ending in EOS, with MASK where nothing is known.
          clamped: which of them no step may change; as many.
          decode: how to go on; of one hypothesis, whatever it says.

        Returns:
          The hypothesis [1, 1, …] as numpy arrays, with its trace.

        Raises:
          PadirError: the model is not parallel or does not decode so, or a sequence is longer than the model allows.
        """
        if not isinstance(self.model, PadirModel) or not isinstance(decode, Refinement):
            raise PadirError("only a refinement by a parallel model goes on from an edited hypothesis")
        decode = continuation.for_one_hypothesis(decode)
        buckets = padir_decoding.target_buckets(self.model, decode)
        if len(tokens) > buckets[-1]:
            raise PadirError(f"a target of {len(tokens)} tokens is longer than the {buckets[-1]} that the model allows")
        if len(source) > self.longest_source:
            raise PadirError(
                f"source of {len(source)} tokens is longer than the {self.longest_source} that the model allows"
            )
        width, bucket = source_width(self.model, len(source)), min(size for size in buckets if size >= len(tokens))
        batch = (np.zeros((1, size), kind) for size, kind in ((width, np.int32), (bucket, np.int32), (bucket, bool)))
        read, start, fixed = batch
        read[0, : len(source)], start[0, : len(tokens)], fixed[0, : len(tokens)] = source, tokens, clamped
        decode, steps = decode.steps_as_data
        run = continuation_program(self.model, decode)
        return jax.device_get(run(self.decoding_params, read, start, fixed, self._key, *steps))

    def inputs(self, decode: DecodeConfig) -> tuple[DecodingParams, Helper | Judge | None]:
        """What the program of a decode is given: parameters of its model (`kinds.decoding_model`), and who helps it."""
        params = self.decoding_params
        if isinstance(decode, Guided):
            return (self._prepared_helper().params if self.verifies_itself else params), self.judge
        if not self.verifies_itself or isinstance(decode, Verified):
            return params, self._prepared_helper()
        # No array is passed that is not needed: each adds latency.
        return (params if isinstance(decode, Refinement) else self._prepared_helper().params), None

    def _prepared_helper(self) -> Helper | None:
        """The helper in the form of decoding, made when it is first needed: a joint model may never need its own."""
        if self._decoding_helper is None and self.helper is not None:
            self._decoding_helper = self.helper.for_decoding(self.compute_type)
        return self._decoding_helper

    def padded_rows(self, sources: int) -> int:
        """Returns the number of rows that a batch of `sources` is padded to: a power of two on every device."""
        return padded_rows(sources, self._mesh.devices.size)

    def checked(self, decode: DecodeConfig | None, *, has_lengths: bool = True) -> DecodeConfig:
        """Returns `decode`, or `default_decode` for None, after checking that it suits the model.

        Args:
          decode: the decode configuration.
          has_lengths: whether target lengths will be given, which the length predictor 'oracle' needs.

        Raises:
          PadirError: the model cannot decode with this configuration.
        """
        decode = self.default_decode if decode is None else decode
        fitting = DECODE_CONFIGS[type(self.model)]
        if self.verifies_itself:
            fitting += DECODE_CONFIGS[AutoregressiveModel]
        if not isinstance(decode, fitting):
            raise PadirError(
                f"decode: {type(decode).__name__} does not fit a {type(self.model).__name__}; "
                f"use {' or '.join(config.__name__ for config in fitting)}"
            )
        verifies, has_verifier = isinstance(decode, Verified), isinstance(self.helper, Verifier)
        if verifies != has_verifier and not self.verifies_itself:
            raise PadirError(
                "decode: Verified needs an autoregressive model that verifies; give verify_with to "
                "padir translate, evaluate, serve or export, padir.load or a System with run_dir, or train with "
                "PadirModel.causal_stage = True (distill and trace take such a model only)"
                if verifies
                else f"decode: {type(decode).__name__} verifies nothing; use Verified, or leave verify_with out"
            )
        if isinstance(decode, Guided):
            guided.check(decode, self.judge)
        elif self.judge is not None:
            raise PadirError(
                f"decode: {type(decode).__name__} takes no verifier of prefixes; use Guided, or leave the verifier out"
            )
        if verifies:
            verification.check(self.model, decode, has_lengths=has_lengths)
        elif isinstance(decode, Refinement):
            has_rescorer = isinstance(self.helper, Rescorer)
            padir_decoding.check(self.model, decode, has_rescorer=has_rescorer, has_lengths=has_lengths)
        return decode


def own_mesh() -> Mesh:
    """Returns a mesh of this process's devices, so that processes decode independently of one another."""
    return sharding.make_mesh(jax.local_devices())


def on_devices(decode: DecodeConfig, count: int) -> DecodeConfig:
    """Returns the decode configuration without the options that only one device can use, if there are several."""
    if count > 1 and isinstance(decode, Refinement):
        return dataclasses.replace(decode, compact_rows=False, logits_block=None)
    return decode


def padded_rows(sources: int, devices: int) -> int:
    """Returns the number of rows that a batch of `sources` is padded to: a power of two on every device."""
    return devices * _power_of_two(-(-sources // devices))


def source_width(model: Model, length: int) -> int:
    """Returns the length that a source of `length` tokens is padded to.

    Padded source and `model.source_prefix`, the tokens that the encoder reads before it, together fill one of
    `SOURCE_BUCKETS`.
    """
    longest = model.max_source_length
    widths = (bucket - model.source_prefix for bucket in SOURCE_BUCKETS)
    return min([width for width in widths if length <= width < longest], default=longest)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
