"""The Python interface for translation: `load` opens a trained model, and `Translator` translates text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from padir import rng
from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses, Trace
from padir.errors import PadirError
from padir.inference.program import Program, decode_program, unpack
from padir.models import padir_decoding
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DECODE_CONFIGS, DecodeConfig, Model
from padir.models.rescoring import Rescorer
from padir.nn.weights import check_compute_type
from padir.runs.convert import needed_vocabulary, open_model
from padir.runtime import host_memory, sharding
from padir.types import EOS_ID, PyTree

# Encoder inputs are padded to the smallest of these lengths that fits, up to the model's longest source.
SOURCE_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Translation:
    """One translated text.

    Attributes:
      text: the best hypothesis, detokenised.
      score: the score by which it was ranked: its log-probability in nats, divided by length^alpha.
      steps_run: the number of decoder passes until it stopped changing. An autoregressive model does one per token.
      predicted_length: the number of target tokens, EOS included.
      hypotheses: all hypotheses as (text, score), best first.
      cut_off: whether an autoregressive model reached its length limit before EOS.
      trace: with `Refinement.return_trace`, every step of every hypothesis, best first; otherwise None. Its fields are
        the numpy arrays of `Trace` without the axis of sources ([T, K, …]).
    """

    text: str
    score: float
    steps_run: int
    predicted_length: int
    hypotheses: tuple[tuple[str, float], ...] = ()
    cut_off: bool = False
    trace: Trace | None = None


class Decoder:
    """A model with its parameters, ready to decode token ids.

    Each combination of rows, padded source length and decode configuration is compiled at its first use. Rows are
    rounded up to a power of two, and source lengths to `SOURCE_BUCKETS`. A refinement is compiled with one branch for
    each of its target buckets, so fewer buckets compile faster.

    Attributes:
      model: the configuration of the model.
      params: the trained parameters, nested dict of float32 arrays on all devices of this process.
      decoding_params: the parameters in the form that decoding uses (`BaseModel.for_decoding`).
      compute_type: the type that the factors of products with weights are rounded to; None if they are not rounded.
    """

    def __init__(
        self,
        model: Model,
        params: PyTree,
        *,
        seed: int = 0,
        rescorer: Rescorer | None = None,
        compute_type: str | None = None,
    ):
        """Places `params` on all devices of this process.

        On CPU, the process also keeps freed memory for reuse; see `host_memory`.

        Args:
          model: the configuration of the model.
          params: its parameters.
          seed: the seed of random decoding.
          rescorer: ranks the hypotheses of a parallel model in place of the model's own scores.
          compute_type: one of `weights.COMPUTE_TYPES`. The factors of products with the weights of the model, but not
            of the rescorer, are rounded to it.

        Raises:
          PadirError: the rescorer has another vocabulary, `model` is autoregressive and takes no rescorer, or
            `compute_type` is unknown.
        """
        check_compute_type("compute_type", compute_type)
        if rescorer is not None:
            if isinstance(model, AutoregressiveModel):
                raise PadirError("rescorer: ranks the hypotheses of a parallel model, but this model is autoregressive")
            rescorer.check(model.ids)
        self.model = model
        self.compute_type = compute_type
        self._has_rescorer = rescorer is not None
        self._mesh = _own_mesh()
        if self._mesh.devices.flat[0].platform == "cpu":
            host_memory.keep_freed()
        self.params, rescorer = jax.device_put((params, rescorer), sharding.replicated(self._mesh))
        self.decoding_params = model.for_decoding(self.params, compute_type)
        self._leaves, self._structure = jax.tree.flatten((self.decoding_params, rescorer))
        self._key = rng.stream(seed, "decode")
        # `decode_program` hashes the model and decode configuration on every call, which is slow.
        self._programs: dict[DecodeConfig, Program] = {}

    @property
    def rescorer(self) -> Rescorer | None:
        """The model that ranks the hypotheses, with its parameters on all devices; None if their own scores do."""
        return jax.tree.unflatten(self._structure, self._leaves)[1]

    @property
    def product_type(self) -> str:
        """The type in which products with weights are computed: `compute_type`, or else the dtype of the network."""
        return self.compute_type or self.model.network.dtype

    @property
    def default_decode(self) -> DecodeConfig:
        """The default decode configuration: 4-step refinement for a PaDIR model, greedy for an autoregressive one."""
        return DECODE_CONFIGS[type(self.model)][0]()

    def decode_ids(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        lengths: Sequence[int] | Sequence[Sequence[int]] | None = None,
    ) -> Hypotheses:
        """Decodes one batch in a single round trip to the device.

        Args:
          sources: token ids of the sources, each ending in EOS.
          decode: the decode configuration, as returned by `checked`.
          lengths: the target lengths, EOS included, one per source; see `translate_ids`. For a parallel model there may
            be several per source.

        Returns:
          The hypotheses as numpy arrays. Rows beyond `len(sources)` are padding.

        Raises:
          PadirError: a source is longer than the model allows, or `lengths` has the wrong shape.
        """
        rows, ways = self.padded_rows(len(sources)), self._mesh.devices.size
        longest = max(map(len, sources))
        if longest > self.model.max_source_length:
            raise PadirError(
                f"a source of {longest} tokens is longer than the {self.model.max_source_length} that the model "
                "allows; prepare the data with smaller maximum lengths"
            )
        width = source_width(self.model, longest)
        batch = np.zeros((rows, width), np.int32)
        for row, ids in enumerate(sources):
            batch[row, : len(ids)] = ids
        placed = jax.device_put(batch, sharding.batch_sharding(self._mesh)) if ways > 1 else batch
        decode = on_devices(decode, ways)
        # The number of refinement steps is an argument, so that 1, 4 and 10 steps share one compiled program.
        decode, steps = decode.steps_as_data if isinstance(decode, Refinement) else (decode, ())
        given = {}
        if lengths is not None:
            shape = np.shape(lengths)
            if shape[:1] != (len(sources),) or len(shape) > (1 if isinstance(self.model, AutoregressiveModel) else 2):
                raise PadirError(f"lengths have shape {shape}; give one for each of the {len(sources)} sources")
            given["lengths"] = np.ones((rows, *shape[1:]), np.int32)
            given["lengths"][: len(lengths)] = lengths
        program = self._programs.get(decode)
        if program is None:
            program = self._programs[decode] = decode_program(self.model, decode, self._structure)
        packed, trace = program(self._leaves, placed, self._key, *steps, **given)
        return unpack(np.asarray(packed), trace)

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
        if not isinstance(decode, fitting):
            raise PadirError(
                f"decode: {type(decode).__name__} does not fit a {type(self.model).__name__}; "
                f"use {' or '.join(config.__name__ for config in fitting)}"
            )
        if isinstance(decode, Refinement):
            padir_decoding.check(self.model, decode, has_rescorer=self._has_rescorer, has_lengths=has_lengths)
        return decode


class Translator(Decoder):
    """A `Decoder` with its vocabulary, ready to translate text; made by `padir.load`."""

    def __init__(
        self,
        model: Model,
        params: PyTree,
        vocabulary: Vocabulary,
        *,
        step: int,
        seed: int = 0,
        rescorer: Rescorer | None = None,
        compute_type: str | None = None,
    ):
        """See `Decoder`. `vocabulary` is that of the training data; `step` is the training step of `params`."""
        super().__init__(model, params, seed=seed, rescorer=rescorer, compute_type=compute_type)
        self.vocabulary = vocabulary
        self.step = step

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a source text, ending in EOS.

        Raises:
          PadirError: the text is empty, or longer than the model allows.
        """
        if not text.strip():
            raise PadirError("empty text: there is nothing to translate")
        ids = [*self.vocabulary.encode(text), EOS_ID]
        if len(ids) > self.model.max_source_length:
            raise PadirError(
                f"source of {len(ids)} tokens is longer than the {self.model.max_source_length} "
                "that the model allows; split it"
            )
        return ids

    def translate(
        self, texts: Sequence[str], decode: DecodeConfig | None = None, *, batch_size: int = 32
    ) -> list[Translation]:
        """Translates texts and returns the translations in the same order.

        A translation does not depend on the batch size or on the other texts of its batch.

        Args:
          texts: the source sentences.
          decode: a configuration for this kind of model (`padir.models.kinds.DECODE_CONFIGS`); `default_decode` if
            None.
          batch_size: the number of texts decoded at a time.

        Raises:
          PadirError: a text is empty or too long (the message gives its position), or `decode` does not suit the model.
        """
        if isinstance(texts, str):
            raise PadirError("translate takes a list of texts, not one text: use translate([text])")
        sources = []
        for index, text in enumerate(texts):
            try:
                sources.append(self.tokenize(text))
            except PadirError as error:
                raise PadirError(f"text {index + 1}: {error}") from None
        return self.translate_ids(sources, decode, batch_size=batch_size)

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig | None = None,
        *,
        batch_size: int = 32,
        lengths: Sequence[int] | None = None,
        done: Callable[[int], object] = lambda count: None,
    ) -> list[Translation]:
        """Translates sources given as token ids and returns the translations in the same order.

        Args:
          sources: the token ids of each source, ending in EOS.
          decode: the decode configuration; `default_decode` if None.
          batch_size: the number of sources decoded at a time.
          lengths: the target lengths, EOS included. A parallel model uses them in place of predicted lengths; the
            length predictor 'oracle' requires them. An autoregressive model writes exactly this many tokens, none of
            which is EOS.
          done: called with the size of each finished batch.

        Raises:
          PadirError: a source is too long, or `decode` does not suit the model.
        """
        decode = self.checked(decode, has_lengths=lengths is not None)
        check_batch_size(batch_size)
        results: list[Translation | None] = [None] * len(sources)
        # Sources of similar length are decoded together, so that batches need little padding.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            given = None if lengths is None else [lengths[row] for row in rows]
            hypotheses = self.decode_ids([sources[row] for row in rows], decode, given)
            for position, row in enumerate(rows):
                results[row] = self._detokenize(hypotheses, position)
            done(len(rows))
        return results

    def _detokenize(self, hypotheses: Hypotheses, row: int) -> Translation:
        every = tuple(
            (self.vocabulary.decode(tokens.tolist()), float(score))
            for tokens, score in zip(hypotheses.tokens[row], hypotheses.scores[row], strict=True)
        )
        text, score = every[0]
        steps, length = int(hypotheses.steps_run[row, 0]), int(hypotheses.predicted_lengths[row, 0])
        # A parallel model chooses the length in advance, so it cannot run into a limit.
        cut_off = isinstance(self.model, AutoregressiveModel) and EOS_ID not in hypotheses.tokens[row, 0]
        trace = jax.tree.map(lambda field: field[:, row], hypotheses.trace)
        return Translation(text, score, steps, length, every, cut_off, trace)


def load(
    path: str | os.PathLike,
    *,
    step: int | None = None,
    seed: int = 0,
    vocabulary: str | os.PathLike | None = None,
    rescore_with: str | os.PathLike | None = None,
    compute_type: str | None = None,
) -> Translator:
    """Opens a run directory or an imported checkpoint; see `padir.load`.

    Args:
      path: a run directory of `padir train`, a Hugging Face folder or a T5X checkpoint.
      step: the checkpoint of a run directory to open; the newest by default.
      seed: the seed of random decoding.
      vocabulary: the SentencePiece model that the model was trained with. Needed only if `path` contains none.
      rescore_with: the path of an autoregressive model with the same vocabulary, which ranks the hypotheses of a
        parallel model.
      compute_type: 'bfloat16' or 'int8' to round the factors of products with weights, which is faster on some devices
        and changes some translations. None computes as in training.

    Raises:
      PadirError: a path holds no model, vocabularies differ or are missing, or an option does not suit the model.
    """
    check_compute_type("compute_type", compute_type)
    given = None if vocabulary is None else Vocabulary.load(vocabulary)
    mesh = _own_mesh()
    opened = open_model(path, mesh, step=step, vocabulary=given)
    own = needed_vocabulary(opened, path)
    rescorer = None if rescore_with is None else _open_rescorer(rescore_with, mesh, own)
    options = {"step": opened.step, "seed": seed, "rescorer": rescorer, "compute_type": compute_type}
    return Translator(opened.model, opened.params, own, **options)


def _own_mesh() -> Mesh:
    """Returns a mesh of this process's devices, so that processes decode independently of one another."""
    return sharding.make_mesh(jax.local_devices())


def _open_rescorer(path: str | os.PathLike, mesh: Mesh, vocabulary: Vocabulary) -> Rescorer:
    opened = open_model(path, mesh, vocabulary=vocabulary)
    if not isinstance(opened.model, AutoregressiveModel):
        raise PadirError(f"{path}: rescoring needs an autoregressive model; this is a {type(opened.model).__name__}")
    return Rescorer(opened.model, opened.params)


def check_batch_size(batch_size: int) -> None:
    """Raises PadirError unless `batch_size` is at least 1."""
    if batch_size < 1:
        raise PadirError(f"batch_size: {batch_size} is not at least 1")


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
