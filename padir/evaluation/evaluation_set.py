"""What an evaluation translates: a prepared split, or two files of lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from padir.data.records import Example, PreparedSet
from padir.data.sources import TextPairs
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.evaluation.system_description import describe_task
from padir.files.paths import as_path
from padir.inference.translator import Translator
from padir.runs.directory import check_vocabulary
from padir.types import EOS_ID


@dataclass(frozen=True)
class EvaluationSet:
    """Sentences with references.

    Attributes:
      examples: sources and references.
      data_dir, split: where they come from, as results name it; of files, their names and 'lines'.
      task: see `describe_task`; of files, all its fields are empty but the name.
      checker: 'module:function' of the task's validity checker, or None.
      cut_sources: how many sources are longer than the model allows, so that only their beginning is translated.
    """

    examples: list[Example]
    data_dir: str
    split: str
    task: dict[str, str]
    checker: str | None = None
    cut_sources: int = 0

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"split {self.split} of {self.data_dir}" if self.task["module"] else self.data_dir


def open_set(
    translator: Translator,
    run_dir: str,
    data_dir: str | None,
    split: str,
    *,
    sources: str | None = None,
    references: str | None = None,
    data_cache: str | None = None,
) -> EvaluationSet:
    """Opens what `padir evaluate` is told to translate.

    Args:
      translator: the model, whose vocabulary and longest source count.
      run_dir: its path, for messages.
      data_dir, split: a prepared set and its split, unless there are files.
      sources, references: two files, plain or .gz, line n of one translating line n of the other.
      data_cache: the local folder to which a split in a bucket is copied; see `PreparedSet.open`.

    Raises:
      PadirError: neither or half of the files and no prepared set is given, the set's vocabulary is another one, it has
        no such split, or a file cannot be read, has an empty line, or has another number of lines.
    """
    if (sources is None) != (references is None):
        missing = "references" if references is None else "sources"
        raise PadirError(f"evaluate.{missing}: give --sources and --references, or neither")
    if sources is not None:
        return _of_files(sources, references, translator.vocabulary, translator.longest_source)
    if data_dir is None:
        raise PadirError("evaluate.data_dir: give a prepared set, or two files with --sources and --references")
    data = PreparedSet.open(data_dir, data_cache)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, run_dir)
    prepared = data.split(split)
    examples = prepared.read(range(len(prepared)))
    examples, cut = _fitting(examples, f"split {split} of {data_dir}", translator.longest_source)
    return EvaluationSet(examples, str(data_dir), split, describe_task(data.manifest), data.manifest.checker, cut)


def _fitting(examples: list[Example], where: str, longest: int) -> tuple[list[Example], int]:
    """The examples with no source longer than the model allows, and how many had to be cut, which is printed."""
    cut = sum(len(example.source_ids) > longest for example in examples)
    if cut:
        print(
            f"{where}: {cut} of {len(examples)} sources have more than the {longest} tokens that the model allows; "
            "only their beginning is translated",
            file=sys.stderr,
        )

    def shortened(ids: np.ndarray) -> np.ndarray:
        return ids if len(ids) <= longest else np.append(ids[: longest - 1], ids[-1])

    return [example._replace(source_ids=shortened(example.source_ids)) for example in examples], cut


def _of_files(sources: str, references: str, vocabulary: Vocabulary, longest: int) -> EvaluationSet:
    paths = as_path(sources), as_path(references)
    pairs = list(TextPairs(paths, format="lines", fields=(0, 1)))
    if not pairs:
        raise PadirError(f"{sources}: is empty; there is nothing to evaluate")
    texts = tuple(zip(*pairs, strict=True))
    encoded = [[np.array([*ids, EOS_ID], np.int32) for ids in vocabulary.encode_batch(list(side))] for side in texts]
    for number, (text, ids) in enumerate(zip(texts[0], encoded[0], strict=True), 1):
        if len(ids) == 1:
            raise PadirError(f"{sources}:{number}: {text!r} has no character that the model knows; remove the pair")
    examples, cut = _fitting([Example(*example) for example in zip(*encoded, *texts, strict=True)], sources, longest)
    names = ", ".join(path.name for path in paths)
    task = {"name": names, "module": "", "source_language": "", "target_language": ""}
    return EvaluationSet(examples, names, "lines", task, cut_sources=cut)
