"""A task over the embedded language pair: generated, English-like to German-like, of any size and ambiguity."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property

from padir.data import synthetic
from padir.data.sources import Pairs
from padir.errors import PadirError
from tasks import TranslationTask, translation_task

CHECKER = "padir.data.synthetic:is_valid"

_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class _SyntheticPairs(Pairs):
    """The generated pairs of one split. None of their sources occurs in the splits `apart_from`."""

    split: str
    count: int
    seed: int
    ambiguity: float
    apart_from: tuple[_SyntheticPairs, ...] = ()

    @cached_property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The pairs, kept in memory because generating them again would be slow."""
        # Short sentences recur, so pairs are skipped and more are drawn from the endless stream.
        stream = itertools.chain.from_iterable(
            synthetic.generate(_CHUNK, seed=f"{self.seed}/{self.split}", ambiguity=self.ambiguity, start=start)
            for start in itertools.count(0, _CHUNK)
        )
        taken = set().union(*(other.sources for other in self.apart_from))
        return tuple(itertools.islice((pair for pair in stream if pair[0] not in taken), self.count))

    @property
    def total(self) -> int:
        return self.count

    @property
    def sources(self) -> set[str]:
        return {source for source, _ in self.rows}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.rows)


def register(
    name: str,
    vocabulary_path: str,
    *,
    num_train: int = 30_000,
    num_validation: int = 500,
    num_test: int = 1_000,
    ambiguity: float = 0.5,
    seed: int = 0,
) -> TranslationTask:
    """Registers a task over the embedded language pair. No source sentence occurs in two splits.

    Args:
      name: name of the Seqio task.
      vocabulary_path: SentencePiece model.
      num_train: number of training pairs. A split of 0 pairs is left out.
      num_validation: number of validation pairs.
      num_test: number of test pairs.
      ambiguity: probability, 0 to 1, of a target drawn uniformly from all valid ones instead of the canonical target.
      seed: seed of the generator.

    Raises:
      PadirError: an option is out of range.
    """
    counts = {"test": num_test, "validation": num_validation, "train": num_train}
    for split, count in counts.items():
        if count < 0:
            raise PadirError(f"task {name}: option num_{split}={count} must not be negative")
    if not 0.0 <= ambiguity <= 1.0:
        raise PadirError(f"task {name}: option ambiguity={ambiguity} must be from 0 to 1")
    pairs: dict[str, Pairs] = {}
    for split, count in counts.items():
        if count:
            pairs[split] = _SyntheticPairs(split, count, seed, ambiguity, apart_from=tuple(pairs.values()))
    return translation_task(
        name,
        vocabulary_path,
        dict(reversed(pairs.items())),
        checker=CHECKER,
        source_language="en",
        target_language="de",
    )
