"""Seqio tasks: one module a data set. Imports TensorFlow, so only `padir prepare` imports this package.

A task module has one function,

    register(name, vocabulary_path, *, <options>) -> TranslationTask

whose keyword arguments are the task's options. It says where the sentence pairs come from and leaves the
rest to `translation_task`. For the pair ("a dog", "ein Hund") the task yields

    inputs   int32 [source_length]  [264, 81, 1]    targets  int32 [target_length]  [97, 310, 1]
    inputs_pretokenized  b"a dog"                   targets_pretokenized  b"ein Hund"

The vocabulary file need not exist when a task is registered: it is read with the first example, so that
the same pairs can train it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf

from padir.data.sources import Pairs
from padir.errors import PadirError

# Crossing from Python to TensorFlow costs the same for one pair as for a thousand.
_PAIRS_PER_CROSSING = 1024


@dataclasses.dataclass(frozen=True)
class TranslationTask:
    """A registered Seqio task, and what preparation must know beside it.

    Attributes:
      task: tokenises, appends EOS and keeps the text.
      pairs: raw text by split; also what a missing vocabulary is trained on. The task reads what is there when it is
        run: preparation puts parts of a split in its place.
      failures: errors the sources ran into. TensorFlow turns an exception of a source into one of its own,
        so the original is kept here to be raised again.
      files: paths the pairs are read from; none if they are generated.
      checker: dotted 'module:function' of is_valid(source, hypothesis), importable without TensorFlow, or None.
      source_language, target_language: labels for reports.
    """

    task: seqio.Task
    pairs: dict[str, Pairs]
    failures: list[PadirError]
    files: tuple[str, ...] = ()
    checker: str | None = None
    source_language: str = ""
    target_language: str = ""


def translation_task(
    name: str,
    vocabulary_path: str,
    pairs: Mapping[str, Pairs],
    *,
    files: tuple[str, ...] = (),
    checker: str | None = None,
    source_language: str = "",
    target_language: str = "",
) -> TranslationTask:
    """Registers a Seqio task over sentence pairs, replacing an earlier one of the same name.

    Args:
      name: of the task.
      vocabulary_path: SentencePiece model, read with the first example.
      pairs: the text of each split.
      files, checker, source_language, target_language: see `TranslationTask`.

    Raises:
      PadirError: a name Seqio does not accept.
    """
    failures: list[PadirError] = []
    pairs = dict(pairs)
    vocabulary = seqio.SentencePieceVocabulary(str(vocabulary_path))
    features = {side: seqio.Feature(vocabulary, add_eos=True) for side in ("inputs", "targets")}
    if name in seqio.TaskRegistry.names():
        seqio.TaskRegistry.remove(name)
    try:
        task = seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(functools.partial(_dataset, pairs, failures), splits=tuple(pairs)),
            preprocessors=[
                functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=True),
                seqio.preprocessors.append_eos,
            ],
            output_features=features,
        )
    except ValueError as error:
        raise PadirError(f"task name {name!r}: {error}") from error
    return TranslationTask(task, pairs, failures, files, checker, source_language, target_language)


def _dataset(
    pairs: Mapping[str, Pairs], failures: list[PadirError], split: str, shuffle_files: bool, seed: int | None = None
) -> tf.data.Dataset:
    """Streams one split into TensorFlow; Seqio calls it. Order is that of the source: batching shuffles."""
    del shuffle_files, seed

    def chunks():
        try:
            rows = iter(pairs[split])
            while chunk := list(itertools.islice(rows, _PAIRS_PER_CROSSING)):
                encoded = [(source.encode(), target.encode()) for source, target in chunk]
                yield tuple(np.array(side, dtype=object) for side in zip(*encoded, strict=True))
        except PadirError as error:
            failures.append(error)
            raise

    signature = (tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.string))
    dataset = tf.data.Dataset.from_generator(chunks, output_signature=signature).unbatch()
    return dataset.map(lambda source, target: {"inputs": source, "targets": target})
