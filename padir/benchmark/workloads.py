"""What systems are asked in a benchmark."""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from padir.data import vocabulary as vocabulary_lib
from padir.data.records import Example, PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.types import EOS_ID, UNK_ID


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Attributes:
      source: ids that end in EOS.
      target_length: tokens to write, EOS counted; None where the model decides.
      text: the source as text, to be answered by text; None where ids are answered by ids.
    """

    source: tuple[int, ...]
    target_length: int | None = None
    text: str | None = None


class Workload(Protocol):
    """Makes the requests of a benchmark."""

    def requests(self, longest: int) -> list[Request]:
        """Requests of at most `longest` tokens on either side."""


@dataclass(frozen=True)
class FixedLengths(Workload):
    """Random ids, `source` tokens to `target` tokens, EOS counted.

    Attributes:
      source, target: lengths.
      num_requests: different sources.
      num_pieces: ids are drawn below this.
      seed: of the ids.
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
                f"FixedLengths: source {self.source} or target {self.target} exceeds the models' {longest}"
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
    """Source and target lengths of real sentence pairs: models are told how long each target is.

    Attributes:
      sources, references: files of one sentence a line, plain or .gz; line n of one translates line n of the other.
      num_requests: sentences drawn; those with too many tokens are passed over, and counted.
      num_pieces: of the vocabulary that is trained on both files to count tokens with.
      seed: of the draw.
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
                f"{self.sources} has {len(sources)} lines, {self.references} {len(references)}: they must be parallel"
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
                f"passed over {len(pairs) - len(fitting)} of {len(pairs)} pairs: over {longest} tokens", file=sys.stderr
            )
        if not fitting:
            raise PadirError(f"{self.sources}: no pair fits into {longest} tokens")
        return random.Random(self.seed).sample(fitting, min(self.num_requests, len(fitting)))


@dataclass(frozen=True)
class PreparedText(Workload):
    """Sentences of a prepared set, translated from text to text by trained models.

    Attributes:
      data_dir: the prepared set.
      split: which split.
      num_requests: the first so many sentences that fit.
    """

    data_dir: str
    split: str = "test"
    num_requests: int = 100

    def requests(self, longest: int) -> list[Request]:
        """See `Workload`."""
        data = PreparedSet.open(self.data_dir)
        prepared = data.split(self.split)
        fitting = fitting_requests(prepared.read(range(len(prepared))), data.vocabulary(), longest)
        return fitting[: self.num_requests]


def fitting_requests(examples: Sequence[Example], vocabulary: Vocabulary, longest: int) -> list[Request]:
    """Source texts, uncut, of at most `longest` tokens, EOS counted; says how many are passed over."""
    texts = [example.source_text for example in examples]
    every = [
        Request((*ids, EOS_ID), None, text) for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True)
    ]
    fitting = [request for request in every if len(request.source) <= longest]
    if len(fitting) < len(every):
        print(f"passed over {len(every) - len(fitting)} sources of over {longest} tokens", file=sys.stderr)
    return fitting


def _read_lines(path: str) -> list[str]:
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise PadirError(f"{path}: cannot be read as text: {error}") from error
