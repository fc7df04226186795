"""A set that `padir distill` made, as a task: to prepare it with other settings, or to mix it with others in Seqio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from padir.data.manifest import MANIFEST_NAME
from padir.data.records import PreparedSet
from padir.data.sources import Pairs
from padir.errors import PadirError
from tasks import TranslationTask, translation_task

# Records are read in blocks of so many.
_CHUNK = 1024


class PreparedPairs(Pairs):
    """The texts of one split of a prepared set, in its order; streamed."""

    def __init__(self, prepared: PreparedSet, split: str):
        """Reads nothing yet; raises PadirError if there is no such split."""
        self._examples = prepared.split(split)
        self.total = len(self._examples)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for start in range(0, self.total, _CHUNK):
            for example in self._examples.read(range(start, min(start + _CHUNK, self.total))):
                yield example.source_text, example.target_text


def register(name: str, vocabulary_path: str, *, data_dir: str) -> TranslationTask:
    """Registers a distilled set: its train split's targets are the teacher's translations, the others' references.

    Args:
      name: of the Seqio task.
      vocabulary_path: SentencePiece model; it need not be the set's own.
      data_dir: the folder that `padir distill` wrote.

    Raises:
      PadirError: no prepared set is there, or one that was not distilled.
    """
    prepared = PreparedSet.open(data_dir)
    manifest = prepared.manifest
    if not manifest.is_distilled:
        raise PadirError(f"task {name}: option data_dir={data_dir!r} holds a set that `padir distill` did not make")
    return translation_task(
        name,
        vocabulary_path,
        {split: PreparedPairs(prepared, split) for split in manifest.splits},
        # It counts the records of every shard and says where the translations came from.
        files=(str(Path(data_dir, MANIFEST_NAME)),),
        checker=manifest.checker,
        source_language=manifest.source_language,
        target_language=manifest.target_language,
    )
