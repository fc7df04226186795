"""Translating text with a trained model, from Python and from files (layer 8)."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import gzip
import itertools
import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import jax
import numpy as np

from padir import rng, sharding
from padir.checkpoints import Checkpointer
from padir.data.vocabulary import Vocabulary
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.models import DecodeConfig, Model, PadirModel
from padir.progress import progress
from padir.run_directory import load_model
from padir.types import EOS_ID, Array, PyTree

# Sources are padded to the smallest of these that holds them, up to the model's longest.
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
    """

    text: str
    score: float
    steps_run: int
    predicted_length: int
    hypotheses: tuple[tuple[str, float], ...] = ()


@functools.partial(jax.jit, static_argnums=(0, 4))
def _decode(model: Model, params: PyTree, source: Array, key: Array, decode: DecodeConfig, *steps: Array) -> Hypotheses:
    """`model.decode`, compiled once for all translators of equal models."""
    return model.decode(params, source, key, decode, *steps)


class Translator:
    """A model with its parameters and vocabulary, ready to translate; made by `padir.load`.

    Each combination of (rows, padded source length, decode configuration) is compiled at its first use.
    """

    def __init__(self, model: Model, params: PyTree, vocabulary: Vocabulary, *, step: int, seed: int = 0):
        """Places `params`, saved at training step `step`, on all devices; `seed` is of random starts."""
        self.model = model
        self.vocabulary = vocabulary
        self.step = step
        self._mesh = sharding.make_mesh()
        self._params = jax.device_put(params, sharding.replicated(self._mesh))
        self._key = rng.stream(seed, "decode")

    @property
    def default_decode(self) -> DecodeConfig:
        """4-step refinement for a PaDIR model, greedy for an autoregressive one."""
        return Refinement() if isinstance(self.model, PadirModel) else Autoregressive()

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
          decode: a `Refinement` (PaDIR) or `Autoregressive` configuration; `default_decode` if None.
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
        self, sources: Sequence[Sequence[int]], decode: DecodeConfig | None = None, *, batch_size: int = 32
    ) -> list[Translation]:
        """Translates sources given as ids that end in EOS; otherwise as `translate`."""
        decode = self.checked(decode)
        _check_batch_size(batch_size)
        results: list[Translation | None] = [None] * len(sources)
        # Like lengths together, so that little of a batch is padding.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            hypotheses = self.decode_ids([sources[row] for row in rows], decode)
            for position, row in enumerate(rows):
                results[row] = self._detokenize(hypotheses, position)
        return results

    def decode_ids(self, sources: Sequence[Sequence[int]], decode: DecodeConfig) -> Hypotheses:
        """Decodes one batch in one device round trip; rows beyond `len(sources)` only pad the result (numpy)."""
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
        steps = ()
        if isinstance(decode, Refinement) and not decode.return_trace:
            # The number of steps is data: 1, 4 and 10 steps share one compiled program.
            steps = (np.int32(decode.num_steps),)
            decode = dataclasses.replace(decode, num_steps=1)
        return jax.device_get(_decode(self.model, self._params, placed, self._key, decode, *steps))

    def checked(self, decode: DecodeConfig | None) -> DecodeConfig:
        """`decode`, or the default for None; raises PadirError if it is for the other kind of model."""
        decode = self.default_decode if decode is None else decode
        if type(decode) is not type(self.default_decode):
            raise PadirError(
                f"decode: {type(decode).__name__} does not fit a {type(self.model).__name__}; "
                f"use {type(self.default_decode).__name__}"
            )
        return decode

    def _detokenize(self, hypotheses: Hypotheses, row: int) -> Translation:
        every = tuple(
            (self.vocabulary.decode(tokens.tolist()), float(score))
            for tokens, score in zip(hypotheses.tokens[row], hypotheses.scores[row], strict=True)
        )
        text, score = every[0]
        steps, length = int(hypotheses.steps_run[row, 0]), int(hypotheses.predicted_lengths[row, 0])
        return Translation(text, score, steps, length, every)


def load(path: str | os.PathLike, *, step: int | None = None) -> Translator:
    """Opens a run directory; see `padir.load`.

    Args:
      path: run directory of `padir train`.
      step: which checkpoint; the newest by default.
    """
    model, vocabulary = load_model(path)
    with Checkpointer(path, read_only=True) as checkpointer:
        step = checkpointer.latest_step() if step is None else step
        params = checkpointer.restore_params(jax.eval_shape(model.init, 0), sharding.make_mesh(), step)
    return Translator(model, params, vocabulary, step=step)


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
) -> Counts:
    """Translates lines of files, batch by batch, in input order and constant memory.

    A line that cannot be translated (empty, invalid UTF-8, too long) goes to the rejects file as JSON with
    file, line number, reason and text. In 'lines' output it leaves an empty line, so that line n still
    translates line n; in 'jsonl' output every record names its file and line.

    Args:
      run_dir: the trained model.
      inputs: text files, plain or .gz; '-' is standard input.
      output: where to write; '-' is standard output. A file is written under a temporary name first.
      output_format: 'lines' (text only) or 'jsonl' (text, score, steps_run, predicted_length).
      rejects: the rejects file; beside `output` if None, or `rejects.jsonl` here for standard output. It is
        written only if there are rejects.
      decode: how to decode; the model's default if None.
      batch_size: lines decoded at a time.

    Returns:
      How many lines were read, translated and rejected.

    Raises:
      PadirError: a missing file, an unknown format or a batch size below 1.
    """
    if output_format not in ("lines", "jsonl"):
        raise PadirError(f"translate.output_format: unknown {output_format!r}; choose lines or jsonl")
    _check_batch_size(batch_size)
    missing = [name for name in inputs if name != "-" and (not Path(name).exists() or Path(name).is_dir())]
    if missing:
        raise PadirError(f"{missing[0]}: no such input file")
    if rejects is None:
        rejects = "rejects.jsonl" if output == "-" else f"{output}.rejects.jsonl"
    translator = load(run_dir)
    decode = translator.checked(decode)
    translated, rejected = 0, 0
    with contextlib.ExitStack() as stack:
        lines = iter(progress(_numbered_lines(inputs), label="translate", unit="lines"))
        out = stack.enter_context(_output(output))
        reject = stack.enter_context(_Rejects(rejects))
        if output != "-":
            # Rejects of an earlier run into the same file are no longer true.
            Path(rejects).unlink(missing_ok=True)
        # Several batches are read at a time, so that sorting by length has something to sort.
        while chunk := list(itertools.islice(lines, 16 * batch_size)):
            results = _translate_lines(translator, chunk, decode, batch_size)
            for (name, number, raw), result in zip(chunk, results, strict=True):
                if isinstance(result, Translation):
                    translated += 1
                    out.write(_format(result, name, number, output_format))
                else:
                    rejected += 1
                    reject.write(name, number, result, raw)
                    out.write("\n" if output_format == "lines" else "")
            out.flush()
    counts = Counts(translated + rejected, translated, rejected)
    where = f"; rejects in {rejects}" if rejected else ""
    print(f"read {counts.read} lines: {translated} translated, {rejected} rejected{where}", file=sys.stderr)
    return counts


def _translate_lines(
    translator: Translator, chunk: list[tuple[str, int, bytes]], decode: DecodeConfig, batch_size: int
) -> list[Translation | str]:
    """A `Translation` per line, or why it is rejected."""
    results: list[Translation | str] = []
    sources = []
    for _, _, raw in chunk:
        try:
            sources.append(translator.tokenize(raw.decode("utf-8")))
            results.append("")
        except UnicodeDecodeError as error:
            results.append(f"invalid UTF-8 at byte {error.start + 1}")
        except PadirError as error:
            results.append(str(error))
    translations = iter(translator.translate_ids(sources, decode, batch_size=batch_size))
    return [result or next(translations) for result in results]


def _numbered_lines(inputs: Sequence[str]) -> Iterator[tuple[str, int, bytes]]:
    """(file, line number from 1, line without its end) of every input, in order."""
    for name in inputs:
        opener = gzip.open if name.endswith(".gz") else open
        number = 0
        try:
            with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else opener(name, "rb") as stream:
                for number, line in enumerate(stream, 1):
                    text = line.rstrip(b"\r\n")
                    yield name, number, text.removeprefix(codecs.BOM_UTF8) if number == 1 else text
        except (OSError, EOFError, zlib.error) as error:
            raise PadirError(f"{name}: cannot be read after line {number}: {error}") from error


def _format(translation: Translation, name: str, number: int, output_format: str) -> str:
    if output_format == "lines":
        return translation.text + "\n"
    record = {
        "file": name,
        "line": number,
        "text": translation.text,
        "score": translation.score,
        "steps_run": translation.steps_run,
        "predicted_length": translation.predicted_length,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _output(path: str) -> Iterator[IO[str]]:
    """Standard output, or a file that takes its name only when it is whole."""
    if path == "-":
        yield sys.stdout
        return
    temporary = Path(f"{path}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            yield stream
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class _Rejects:
    """The rejects file, made at the first reject."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._stream: IO[str] | None = None

    def __enter__(self) -> _Rejects:
        return self

    def write(self, name: str, number: int, reason: str, raw: bytes) -> None:
        """Adds one line."""
        if self._stream is None:
            self._stream = self._path.open("w", encoding="utf-8")
        text = raw.decode("utf-8", errors="backslashreplace")
        record = {"file": name, "line": number, "reason": reason, "text": text}
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._stream.flush()

    def __exit__(self, *exception: object) -> None:
        if self._stream is not None:
            self._stream.close()


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise PadirError(f"batch_size: {batch_size} is not at least 1")


def _bucket(length: int, longest: int) -> int:
    return min([bucket for bucket in SOURCE_BUCKETS if length <= bucket < longest], default=longest)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
