"""The requests that systems answer in a benchmark."""

from __future__ import annotations

import functools
import io
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from padir.data import vocabulary as vocabulary_lib
from padir.data.records import PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.lines import is_compressed
from padir.files.reading import open_for_reading
from padir.inference.decoder import own_mesh
from padir.runs.convert import needed_vocabulary, open_model
from padir.types import EOS_ID, UNK_ID


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Attributes:
      source: source ids, with EOS at the end.
      target_length: target tokens to write, EOS counted; None if the model decides.
      text: the source as text, if the answer must be text; None if the answer is ids.
    """

    source: tuple[int, ...]
    target_length: int | None = None
    text: str | None = None


class Workload(Protocol):
    """A source of requests for a benchmark."""

    def requests(self, longest: int) -> list[Request]:
        """Returns requests with at most `longest` tokens on each side, EOS counted.

        Raises:
          PadirError: the requests cannot be made, or none is short enough.
        """


@dataclass(frozen=True)
class FixedLengths(Workload):
    """Requests with random ids and fixed lengths.

    Attributes:
      source, target: lengths in tokens, EOS counted.
      num_requests: number of requests; each has another source.
      num_pieces: ids are drawn below this number.
      seed: random seed of the ids.
    """

    source: int = 32
    target: int = 32
    num_requests: int = 1
    num_pieces: int = 32_000
    seed: int = 0

    def __post_init__(self):
        for name in ("source", "target", "num_requests"):
            if getattr(self, name) < 1:
                raise PadirError(f"FixedLengths.{name}: {getattr(self, name)} is not at least 1")

    def requests(self, longest: int) -> list[Request]:
        """See `Workload`."""
        if max(self.source, self.target) > longest:
            raise PadirError(
                f"FixedLengths: source {self.source} or target {self.target} exceeds the longest length of the models, "
                f"{longest}"
            )
        draw = random.Random(self.seed)
        return [
            Request(
                (*(draw.randrange(UNK_ID + 1, self.num_pieces) for _ in range(self.source - 1)), EOS_ID), self.target
            )
            for _ in range(self.num_requests)
        ]


@dataclass(frozen=True)
class ParallelText(Workload):
    """Requests with the lengths of real sentence pairs. Models are told the target lengths.

    Attributes:
      sources, references: files with one sentence per line, plain or .gz. Line n of one translates line n of the other.
      num_requests: number of sentences to draw. Sentences with too many tokens are skipped; a message says how many.
      num_pieces: size of the vocabulary that is trained on both files to count tokens.
      seed: random seed of the draw.
    """

    sources: str
    references: str
    num_requests: int = 100
    num_pieces: int = 8_000
    seed: int = 0

    def requests(self, longest: int) -> list[Request]:
        """See `Workload`."""
        sources, references = _read_lines(self.sources), _read_lines(self.references)
        if len(sources) != len(references):
            raise PadirError(
                f"{self.sources} has {len(sources)} lines but {self.references} has {len(references)}; "
                "line n of one must translate line n of the other"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lengths.model"
            vocabulary_lib.train(sources + references, path, num_pieces=self.num_pieces)
            vocabulary = Vocabulary.load(path)
        encoded = vocabulary.encode_batch(sources), vocabulary.encode_batch(references)
        pairs = [Request((*source, EOS_ID), len(reference) + 1) for source, reference in zip(*encoded, strict=True)]
        fitting = [pair for pair in pairs if max(len(pair.source), pair.target_length) <= longest]
        if len(fitting) < len(pairs):
            print(
                f"skipped {len(pairs) - len(fitting)} of {len(pairs)} pairs with more than {longest} tokens",
                file=sys.stderr,
            )
        if not fitting:
            raise PadirError(f"{self.sources}: every sentence pair has more than {longest} tokens")
        return random.Random(self.seed).sample(fitting, min(self.num_requests, len(fitting)))


class TextWorkload(Workload):
    """Sentences that trained models translate from text to text."""

    def vocabulary(self) -> Vocabulary:
        """The vocabulary that counts tokens. Every system must have it."""
        raise NotImplementedError


@dataclass(frozen=True)
class SourceText(TextWorkload):
    """Sentences of a text file.

    Attributes:
      sources: file with one sentence per line, plain or .gz. Empty lines are left out.
      run_dir: a trained model, as `padir.load` opens it, whose vocabulary counts tokens.
      num_requests: number of sentences, the first ones that are short enough.
    """

    sources: str
    run_dir: str
    num_requests: int = 100

    def vocabulary(self) -> Vocabulary:
        """See `TextWorkload`."""
        return _vocabulary_of(self.run_dir)

    def requests(self, longest: int) -> list[Request]:
        """See `Workload`."""
        requests = fitting_requests(_read_lines(self.sources), self.vocabulary(), longest)
        # As `Translator.is_blank` has it; of a text without a piece only EOS is left.
        return [each for each in requests if each.text.strip() and len(each.source) > 1][: self.num_requests]


@dataclass(frozen=True)
class PreparedText(TextWorkload):
    """Sentences of a prepared data set.

    Attributes:
      data_dir: the prepared data set.
      split: the split to take sentences from.
      num_requests: number of sentences, the first ones that are short enough.
    """

    data_dir: str
    split: str = "test"
    num_requests: int = 100

    def vocabulary(self) -> Vocabulary:
        """See `TextWorkload`."""
        return PreparedSet.open(self.data_dir).vocabulary()

    def requests(self, longest: int) -> list[Request]:
        """See `Workload`."""
        prepared = PreparedSet.open(self.data_dir).split(self.split)
        texts = [example.source_text for example in prepared.read(range(len(prepared)))]
        return fitting_requests(texts, self.vocabulary(), longest)[: self.num_requests]


def fitting_requests(texts: Sequence[str], vocabulary: Vocabulary, longest: int) -> list[Request]:
    """Requests for the texts that have at most `longest` tokens; prints how many are skipped.

    Args:
      texts: to translate.
      vocabulary: the vocabulary to count tokens with.
      longest: the maximum number of source tokens, EOS counted.
    """
    every = [
        Request((*ids, EOS_ID), None, text) for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True)
    ]
    fitting = [request for request in every if len(request.source) <= longest]
    if len(fitting) < len(every):
        print(f"skipped {len(every) - len(fitting)} sources with more than {longest} tokens", file=sys.stderr)
    return fitting


@functools.cache
def _vocabulary_of(run_dir: str) -> Vocabulary:
    """A model's vocabulary, for which the whole model is opened."""
    return needed_vocabulary(open_model(run_dir, own_mesh()), run_dir)


def _read_lines(path: str) -> list[str]:
    try:
        with io.TextIOWrapper(open_for_reading(path, decompress=is_compressed(path)), encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise PadirError(f"{path}: cannot be read as UTF-8 text: {error}") from error
