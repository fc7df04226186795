"""Translating text with a trained model, from Python."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from padir import rng
from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses, Trace
from padir.errors import PadirError
from padir.models import padir_decoding
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DECODE_CONFIGS, DecodeConfig, Model
from padir.models.rescoring import Rescorer
from padir.nn.weights import check_compute_type
from padir.runs.convert import needed_vocabulary, open_model
from padir.runtime import host_memory, sharding
from padir.types import EOS_ID, Array, PyTree

# What the encoder reads is padded to the smallest of these that holds it, up to the model's longest source.
SOURCE_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Translation:
    """One translated text.

    Attributes:
      text: the best hypothesis, detokenised.
      score: what it was ranked by, log-probability over length^alpha in nats.
      steps_run: decoder passes until it stopped changing (one a token for an autoregressive model).
      predicted_length: target tokens, EOS counted.
      hypotheses: every hypothesis as (text, score), best first.
      cut_off: whether an autoregressive model came to its length limit before it wrote EOS.
      trace: with `Refinement.return_trace` every step of every hypothesis, best first: numpy fields as in `Trace`
        without the axis of sources ([T, K, …]), positions up to the model's longest target.
    """

    text: str
    score: float
    steps_run: int
    predicted_length: int
    hypotheses: tuple[tuple[str, float], ...] = ()
    cut_off: bool = False
    trace: Trace | None = None


# (parameters and rescorer as leaves, source, key, number of steps where it is data) → (packed hypotheses, trace)
_Program = Callable[..., tuple[Array, Trace | None]]


@functools.cache
def _program(model: Model, decode: DecodeConfig, structure: jax.tree_util.PyTreeDef) -> _Program:
    """`model.decode`, compiled once for all translators of equal models.

    What is handed over costs microseconds a piece, which short requests feel: so parameters go in as bare leaves and
    the hypotheses come out as one array.
    """

    @jax.jit
    def run(
        leaves: list[Array], source: Array, key: Array, *steps: Array, **lengths: Array
    ) -> tuple[Array, Trace | None]:
        params, rescorer = jax.tree.unflatten(structure, leaves)
        options = lengths if rescorer is None else {**lengths, "rescorer": rescorer}
        found = model.decode(params, source, key, decode, *steps, **options)
        return _pack(found), found.trace

    return run


def _pack(found: Hypotheses) -> Array:
    """Everything but the trace as [B, K, 4 + L] int32, to be copied to the host at once."""
    scores = jax.lax.bitcast_convert_type(found.scores, jnp.int32)
    batch_steps = jnp.broadcast_to(found.batch_steps, scores.shape)
    numbers = jnp.stack([scores, found.predicted_lengths, found.steps_run, batch_steps], axis=-1)
    return jnp.concatenate([numbers, found.tokens], axis=-1)


def _unpack(packed: np.ndarray, trace: Trace | None) -> Hypotheses:
    """What `_pack` packed, as numpy arrays."""
    scores = np.ascontiguousarray(packed[..., 0]).view(np.float32)
    trace = None if trace is None else jax.device_get(trace)
    return Hypotheses(packed[..., 4:], scores, packed[..., 1], packed[..., 2], packed[0, 0, 3], trace)


class Decoder:
    """A model with its parameters, ready to decode token ids.

    Each combination of (rows, padded source length, decode configuration) is compiled at its first use: rows are
    rounded up to a power of two, source lengths to `SOURCE_BUCKETS`. A refinement is compiled with a branch for
    every one of its target buckets, needed or not: fewer of them compile faster.

    Attributes:
      model: what `params` are of.
      params: as they were trained, on all devices.
      decoding_params: as the programs read them (`BaseModel.for_decoding`).
      compute_type: what the factors of products with weights are rounded to; None for nothing.
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

        `seed` is of random starts; `rescorer` ranks a parallel model's hypotheses instead of its own scores;
        `compute_type`, of `weights.COMPUTE_TYPES`, is what the factors of products with the model's weights are rounded
        to (not the rescorer's). On CPU the process keeps the memory it has freed, see `host_memory`.

        Raises:
          PadirError: a rescorer of another vocabulary, or for a model that ranks in its search; an unknown type.
        """
        check_compute_type("compute_type", compute_type)
        if rescorer is not None:
            if isinstance(model, AutoregressiveModel):
                raise PadirError("rescorer: ranks the hypotheses of a parallel model; this one is autoregressive")
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
        # `_program` would hash the model at every request.
        self._programs: dict[DecodeConfig, _Program] = {}

    @property
    def rescorer(self) -> Rescorer | None:
        """What ranks the hypotheses, if not their own scores; on all devices."""
        return jax.tree.unflatten(self._structure, self._leaves)[1]

    @property
    def product_type(self) -> str:
        """What weights are multiplied in."""
        return self.compute_type or self.model.network.dtype

    @property
    def default_decode(self) -> DecodeConfig:
        """4-step refinement for a PaDIR model, greedy for an autoregressive one."""
        return DECODE_CONFIGS[type(self.model)][0]()

    def decode_ids(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        lengths: Sequence[int] | Sequence[Sequence[int]] | None = None,
    ) -> Hypotheses:
        """Decodes one batch in one device round trip; rows beyond `len(sources)` only pad the result (numpy).

        `lengths` as in `translate_ids`; of a parallel decode it may be several of each target.
        """
        rows, ways = self.padded_rows(len(sources)), self._mesh.devices.size
        longest = max(map(len, sources))
        if longest > self.model.max_source_length:
            raise PadirError(
                f"a source of {longest} tokens is longer than the {self.model.max_source_length} the model allows; "
                "prepare the data with smaller maximum lengths"
            )
        width = source_width(self.model, longest)
        batch = np.zeros((rows, width), np.int32)
        for row, ids in enumerate(sources):
            batch[row, : len(ids)] = ids
        placed = jax.device_put(batch, sharding.batch_sharding(self._mesh)) if ways > 1 else batch
        if ways > 1 and isinstance(decode, Refinement):
            decode = dataclasses.replace(decode, compact_rows=False, logits_block=None)
        # Of a refinement the number of steps is data: 1, 4 and 10 steps share one compiled program.
        decode, steps = decode.steps_as_data if isinstance(decode, Refinement) else (decode, ())
        given = {}
        if lengths is not None:
            shape = np.shape(lengths)
            if shape[:1] != (len(sources),) or len(shape) > (1 if isinstance(self.model, AutoregressiveModel) else 2):
                raise PadirError(f"lengths of shape {shape} are not one for each of {len(sources)} sources")
            given["lengths"] = np.ones((rows, *shape[1:]), np.int32)
            given["lengths"][: len(lengths)] = lengths
        program = self._programs.get(decode)
        if program is None:
            program = self._programs[decode] = _program(self.model, decode, self._structure)
        packed, trace = program(self._leaves, placed, self._key, *steps, **given)
        return _unpack(np.asarray(packed), trace)

    def padded_rows(self, sources: int) -> int:
        """Rows that a batch of so many sources is padded to: a power of two on every device."""
        ways = self._mesh.devices.size
        return ways * _power_of_two(-(-sources // ways))

    def checked(self, decode: DecodeConfig | None, *, has_lengths: bool = True) -> DecodeConfig:
        """`decode`, or the default for None; raises PadirError if this model cannot decode so.

        `has_lengths` says whether the targets' lengths will be given, which an oracle cannot do without.
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
        """As `Decoder`; `params` were saved at training step `step`."""
        super().__init__(model, params, seed=seed, rescorer=rescorer, compute_type=compute_type)
        self.vocabulary = vocabulary
        self.step = step

    def tokenize(self, text: str) -> list[int]:
        """Text → source ids ending in EOS.

        Raises:
          PadirError: the text is empty, or longer than the model allows.
        """
        if not text.strip():
            raise PadirError("empty text: there is nothing to translate")
        ids = [*self.vocabulary.encode(text), EOS_ID]
        if len(ids) > self.model.max_source_length:
            raise PadirError(
                f"source of {len(ids)} tokens is longer than the {self.model.max_source_length} "
                "the model allows: split it"
            )
        return ids

    def translate(
        self, texts: Sequence[str], decode: DecodeConfig | None = None, *, batch_size: int = 32
    ) -> list[Translation]:
        """Translates texts, in order; neither batch size nor neighbours change a translation.

        Args:
          texts: source sentences.
          decode: a configuration that the model takes (`padir.models.kinds.DECODE_CONFIGS`); `default_decode` if None.
          batch_size: texts decoded at a time.

        Raises:
          PadirError: a text that is empty or too long (names its position), or a decode configuration of
            the other kind of model.
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
        """Translates sources given as ids that end in EOS, and tells `done` the size of every finished batch.

        Otherwise as `translate`. `lengths` are those of the targets, EOS counted: a parallel model then does not
        predict them, and one with the length predictor 'oracle' needs them; an autoregressive model writes so many
        tokens, none of them EOS.
        """
        decode = self.checked(decode, has_lengths=lengths is not None)
        check_batch_size(batch_size)
        results: list[Translation | None] = [None] * len(sources)
        # Like lengths together, so that little of a batch is padding.
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
        # A parallel decode settles its length beforehand: it has no limit to come to.
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
      path: run directory of `padir train`, folder of Hugging Face or T5X checkpoint.
      step: which checkpoint of a run directory; the newest by default.
      seed: of decoding, where it is random.
      vocabulary: the SentencePiece model it was trained with, for a checkpoint that has none beside it.
      rescore_with: an autoregressive model of the same vocabulary, opened likewise: it ranks a parallel model's
        hypotheses.
      compute_type: 'bfloat16' or 'int8': what the factors of products with weights are rounded to, which on some
        devices is faster and changes some translations; None multiplies as in training.
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
    """This process's devices: what one of several decodes does not wait for the others."""
    return sharding.make_mesh(jax.local_devices())


def _open_rescorer(path: str | os.PathLike, mesh: Mesh, vocabulary: Vocabulary) -> Rescorer:
    opened = open_model(path, mesh, vocabulary=vocabulary)
    if not isinstance(opened.model, AutoregressiveModel):
        raise PadirError(f"{path}: rescoring needs an autoregressive model, this is a {type(opened.model).__name__}")
    return Rescorer(opened.model, opened.params)


def check_batch_size(batch_size: int) -> None:
    """Raises PadirError unless `batch_size` is at least 1."""
    if batch_size < 1:
        raise PadirError(f"batch_size: {batch_size} is not at least 1")


def source_width(model: Model, length: int) -> int:
    """What a source of `length` tokens is padded to.

    With the tokens that the encoder reads before it, it fills a bucket: 33 rows take an encoder as long as 48.
    """
    longest = model.max_source_length
    widths = (bucket - model.source_prefix for bucket in SOURCE_BUCKETS)
    return min([width for width in widths if length <= width < longest], default=longest)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
