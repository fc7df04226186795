"""Seqio tasks, one module per data set. Only `padir prepare` imports this package, because it imports TensorFlow.

A task module has one function,

    register(name, vocabulary_path, *, <options>) -> TranslationTask

whose keyword arguments are the task's options. The function says where the sentence pairs come from, and
`translation_task` does the rest. For the pair ("a dog", "ein Hund") the task yields

    inputs   int32 [source_length]  [264, 81, 1]    targets  int32 [target_length]  [97, 310, 1]
    inputs_pretokenized  b"a dog"                   targets_pretokenized  b"ein Hund"

A task can be registered before its vocabulary file exists, because the file is read with the first example. So the
vocabulary can be trained on the pairs of the same task.
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

# Handing data from Python to TensorFlow costs about the same for one pair as for a thousand.
_PAIRS_PER_CROSSING = 1024


@dataclasses.dataclass(frozen=True)
class TranslationTask:
    """A registered Seqio task and the other things that preparation needs.

    Attributes:
      task: tokenises, appends EOS and keeps the text.
      pairs: raw text by split; a missing vocabulary is trained on it. The task looks its pairs up here when it runs, so
        preparation can replace a split by a part of it.
      failures: errors raised by the sources. TensorFlow replaces a source's exception by one of its own, so the
        original is kept here to be raised again.
      files: the files from which the pairs are read; empty if the pairs are generated.
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
    """Registers a Seqio task over sentence pairs. It replaces an earlier task of the same name.

    Args:
      name: name of the task.
      vocabulary_path: SentencePiece model, read with the first example.
      pairs: text by split.
      files, checker, source_language, target_language: see `TranslationTask`.

    Raises:
      PadirError: Seqio does not accept the name.
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
    """Streams one split into TensorFlow, in the order of its source. Seqio calls it; batching shuffles later."""
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
