"""Translating text with a trained model, from Python and from files (layer 8)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from padir import rng, sharding
from padir.convert import needed_vocabulary, open_model
from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses, Trace
from padir.errors import PadirError
from padir.line_files import Line, Rejects, check_inputs, count_lines, read_chunks, writing
from padir.models import DECODE_CONFIGS, AutoregressiveModel, DecodeConfig, Model, padir_decoding
from padir.progress import progress
from padir.types import EOS_ID, Array, PyTree

# Sources are padded to the smallest of these that holds them, up to the model's longest.
SOURCE_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# Lines are read so many batches at a time, so that sorting them by length has something to sort.
_BATCHES_PER_READ = 16


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
    """

    text: str
    score: float
    steps_run: int
    predicted_length: int
    hypotheses: tuple[tuple[str, float], ...] = ()
    cut_off: bool = False


# (parameters as leaves, source, key, number of steps where it is data) → (packed hypotheses, trace)
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
        found = model.decode(jax.tree.unflatten(structure, leaves), source, key, decode, *steps, **lengths)
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
    return Hypotheses(packed[..., 4:], scores, packed[..., 1], packed[..., 2], packed[0, 0, 3], jax.device_get(trace))


class Translator:
    """A model with its parameters and vocabulary, ready to translate; made by `padir.load`.

    Each combination of (rows, padded source length, decode configuration) is compiled at its first use: rows are
    rounded up to a power of two, source lengths to `SOURCE_BUCKETS`. A refinement is compiled with a branch for
    every one of its target buckets, needed or not: fewer of them compile faster.
    """

    def __init__(self, model: Model, params: PyTree, vocabulary: Vocabulary, *, step: int, seed: int = 0):
        """Places `params`, saved at training step `step`, on all devices; `seed` is of random starts."""
        self.model = model
        self.vocabulary = vocabulary
        self.step = step
        self._mesh = sharding.make_mesh()
        self._leaves, self._structure = jax.tree.flatten(jax.device_put(params, sharding.replicated(self._mesh)))
        self._key = rng.stream(seed, "decode")

    @property
    def default_decode(self) -> DecodeConfig:
        """4-step refinement for a PaDIR model, greedy for an autoregressive one."""
        return DECODE_CONFIGS[type(self.model)][0]()

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
          decode: a configuration that the model takes (`padir.models.DECODE_CONFIGS`); `default_decode` if None.
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
        predict them, and one with the length predictor 'oracle' needs them.
        """
        decode = self.checked(decode)
        _check_batch_size(batch_size)
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

    def decode_ids(
        self, sources: Sequence[Sequence[int]], decode: DecodeConfig, lengths: Sequence[int] | None = None
    ) -> Hypotheses:
        """Decodes one batch in one device round trip; rows beyond `len(sources)` only pad the result (numpy).

        `lengths` as in `translate_ids`.
        """
        ways = self._mesh.devices.size
        rows = ways * _power_of_two(-(-len(sources) // ways))
        longest = max(map(len, sources))
        if longest > self.model.max_source_length:
            raise PadirError(
                f"a source of {longest} tokens is longer than the {self.model.max_source_length} the model allows; "
                "prepare the data with smaller maximum lengths"
            )
        width = _bucket(longest, self.model.max_source_length)
        batch = np.zeros((rows, width), np.int32)
        for row, ids in enumerate(sources):
            batch[row, : len(ids)] = ids
        placed = jax.device_put(batch, sharding.batch_sharding(self._mesh)) if ways > 1 else batch
        # Of a refinement the number of steps is data: 1, 4 and 10 steps share one compiled program.
        decode, steps = decode.steps_as_data if isinstance(decode, Refinement) else (decode, ())
        given = {}
        if lengths is not None:
            if isinstance(self.model, AutoregressiveModel):
                raise PadirError("lengths: an autoregressive model settles them itself; leave them out")
            given["lengths"] = np.ones((rows,), np.int32)
            given["lengths"][: len(lengths)] = lengths
        program = _program(self.model, decode, self._structure)
        packed, trace = program(self._leaves, placed, self._key, *steps, **given)
        return _unpack(np.asarray(packed), trace)

    def checked(self, decode: DecodeConfig | None) -> DecodeConfig:
        """`decode`, or the default for None; raises PadirError if this model cannot decode so."""
        decode = self.default_decode if decode is None else decode
        fitting = DECODE_CONFIGS[type(self.model)]
        if not isinstance(decode, fitting):
            raise PadirError(
                f"decode: {type(decode).__name__} does not fit a {type(self.model).__name__}; "
                f"use {' or '.join(config.__name__ for config in fitting)}"
            )
        if isinstance(decode, Refinement):
            padir_decoding.check(self.model, decode)
        return decode

    def _detokenize(self, hypotheses: Hypotheses, row: int) -> Translation:
        every = tuple(
            (self.vocabulary.decode(tokens.tolist()), float(score))
            for tokens, score in zip(hypotheses.tokens[row], hypotheses.scores[row], strict=True)
        )
        text, score = every[0]
        steps, length = int(hypotheses.steps_run[row, 0]), int(hypotheses.predicted_lengths[row, 0])
        # A parallel decode settles its length beforehand: it has no limit to come to.
        cut_off = isinstance(self.model, AutoregressiveModel) and EOS_ID not in hypotheses.tokens[row, 0]
        return Translation(text, score, steps, length, every, cut_off)


def load(
    path: str | os.PathLike,
    *,
    step: int | None = None,
    seed: int = 0,
    vocabulary: str | os.PathLike | None = None,
) -> Translator:
    """Opens a run directory or an imported checkpoint; see `padir.load`.

    Args:
      path: run directory of `padir train`, folder of Hugging Face or T5X checkpoint.
      step: which checkpoint of a run directory; the newest by default.
      seed: of decoding, where it is random.
      vocabulary: the SentencePiece model it was trained with, for a checkpoint that has none beside it.
    """
    given = None if vocabulary is None else Vocabulary.load(vocabulary)
    opened = open_model(path, sharding.make_mesh(), step=step, vocabulary=given)
    return Translator(opened.model, opened.params, needed_vocabulary(opened, path), step=opened.step, seed=seed)


@dataclass(frozen=True)
class Counts:
    """Lines of a `translate_files` job; read = translated + rejected."""

    read: int
    translated: int
    rejected: int


def translate_files(
    *,
    run_dir: str,
    inputs: Sequence[str] = ("-",),
    output: str = "-",
    output_format: str = "lines",
    rejects: str | None = None,
    decode: DecodeConfig | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Counts:
    """Translates lines of files, batch by batch, in input order and constant memory.

    16 batches of lines are read at a time and sorted by length; from standard input as many of them as have come
    when it pauses, so that a person or a program that waits for its answer gets it.

    A line that cannot be translated (empty, invalid UTF-8, too long) goes to the rejects file as JSON with
    file, line number, reason and text. In 'lines' output it leaves an empty line, so that line n still
    translates line n; in 'jsonl' output every record names its file and line.

    Args:
      run_dir: the trained model.
      inputs: text files, plain or .gz; '-' is standard input.
      output: where to write; '-' is standard output. A file is `<output>.partial` until it is whole, and stays
        so where the job fails.
      output_format: 'lines' (text only) or 'jsonl' (text, score, steps_run, predicted_length).
      rejects: the rejects file; beside `output` if None, or `rejects.jsonl` here for standard output. It is
        written only if there are rejects.
      decode: how to decode; the model's default if None.
      batch_size: lines decoded at a time.
      seed: of decoding, where it is random.

    Returns:
      How many lines were read, translated and rejected.

    Raises:
      PadirError: a missing file, an unknown format or a batch size below 1.
    """
    if output_format not in ("lines", "jsonl"):
        raise PadirError(f"translate.output_format: unknown {output_format!r}; choose lines or jsonl")
    _check_batch_size(batch_size)
    check_inputs(inputs)
    if rejects is None:
        rejects = "rejects.jsonl" if output == "-" else f"{output}.rejects.jsonl"
    translator = load(run_dir, seed=seed)
    counts = _translate_all(translator, inputs, output, output_format, rejects, translator.checked(decode), batch_size)
    left_out = f"{counts.rejected} rejected" + (f"; rejects in {rejects}" if counts.rejected else "")
    print(f"read {counts.read} lines: {counts.translated} translated, {left_out}", file=sys.stderr)
    return counts


def _translate_all(
    translator: Translator,
    inputs: Sequence[str],
    output: str,
    output_format: str,
    rejects: str,
    decode: DecodeConfig,
    batch_size: int,
) -> Counts:
    """Reads, translates and writes chunk by chunk; arguments of `translate_files`, all checked."""
    read = rejected = 0
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(writing(output))
        reject = stack.enter_context(Rejects(rejects))
        bar = stack.enter_context(progress(label="translate", unit="lines"))
        if not bar.disable:
            bar.total = count_lines(inputs)
        if output != "-":
            # Rejects of an earlier run into the same file are no longer true.
            Path(rejects).unlink(missing_ok=True)
        for chunk in read_chunks(inputs, _BATCHES_PER_READ * batch_size):
            results = _translate_lines(translator, chunk, decode, batch_size)
            for line, result in zip(chunk, results, strict=True):
                if isinstance(result, Translation):
                    out.write(_format(result, line, output_format))
                else:
                    rejected += 1
                    reject.write(line, result)
                    out.write("\n" if output_format == "lines" else "")
            out.flush()
            read += len(chunk)
            bar.update(len(chunk))
    return Counts(read, read - rejected, rejected)


def _translate_lines(
    translator: Translator, chunk: list[Line], decode: DecodeConfig, batch_size: int
) -> list[Translation | str]:
    """A `Translation` per line, or why it is rejected."""
    results: list[Translation | str] = []
    sources = []
    for line in chunk:
        try:
            sources.append(translator.tokenize(line.raw.decode("utf-8")))
            results.append("")
        except UnicodeDecodeError as error:
            results.append(f"invalid UTF-8 at byte {error.start + 1}")
        except PadirError as error:
            results.append(str(error))
    translations = iter(translator.translate_ids(sources, decode, batch_size=batch_size))
    return [result or next(translations) for result in results]


def _format(translation: Translation, line: Line, output_format: str) -> str:
    if output_format == "lines":
        return translation.text + "\n"
    record = {
        "file": line.file,
        "line": line.number,
        "text": translation.text,
        "score": translation.score,
        "steps_run": translation.steps_run,
        "predicted_length": translation.predicted_length,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise PadirError(f"batch_size: {batch_size} is not at least 1")


def _bucket(length: int, longest: int) -> int:
    return min([bucket for bucket in SOURCE_BUCKETS if length <= bucket < longest], default=longest)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
