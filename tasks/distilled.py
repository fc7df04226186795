"""A task over a distilled set, to prepare the set with other settings or to mix it with other tasks in Seqio."""

from __future__ import annotations

from collections.abc import Iterator

from padir.data.manifest import MANIFEST_NAME
from padir.data.records import PreparedSet
from padir.data.sources import Pairs
from padir.errors import PadirError
from padir.files.paths import joined
from tasks import TranslationTask, translation_task

# Records read at a time.
_CHUNK = 1024


class PreparedPairs(Pairs):
    """The sentence pairs of one split of a prepared set, streamed in the order of the set."""

    def __init__(self, prepared: PreparedSet, split: str):
        """Reads no record yet. Raises PadirError if the set has no such split."""
        self._examples = prepared.split(split)
        self.total = len(self._examples)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for start in range(0, self.total, _CHUNK):
            for example in self._examples.read(range(start, min(start + _CHUNK, self.total))):
                yield example.source_text, example.target_text


def register(name: str, vocabulary_path: str, *, data_dir: str) -> TranslationTask:
    """Registers a task over a distilled set.

    The targets of its train split are the teacher's translations. Those of the other splits are references.

    Args:
      name: name of the Seqio task.
      vocabulary_path: SentencePiece model, which may differ from the set's own.
      data_dir: folder written by `padir distill`.

    Raises:
      PadirError: the folder holds no prepared set, or one that was not distilled.
    """
    prepared = PreparedSet.open(data_dir)
    manifest = prepared.manifest
    if not manifest.is_distilled:
        raise PadirError(f"task {name}: option data_dir={data_dir!r} holds a set that was not made by `padir distill`")
    return translation_task(
        name,
        vocabulary_path,
        {split: PreparedPairs(prepared, split) for split in manifest.splits},
        # The manifest identifies the set: it has the record count of each shard and the origin of the translations.
        files=(str(joined(data_dir, MANIFEST_NAME)),),
        checker=manifest.checker,
        source_language=manifest.source_language,
        target_language=manifest.target_language,
    )
