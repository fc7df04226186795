"""The train split of a distilled set: its records, and the same as text."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from padir.data.manifest import PrepareSettings, SplitManifest
from padir.data.records import Example, SplitWriter
from padir.data.vocabulary import Vocabulary
from padir.files.atomic import replacing
from padir.inference.distill_filters import DistillFilters
from padir.types import EOS_ID

_KEPT_FILE, _LEFT_OUT_FILE = "train.jsonl", "left_out.jsonl"


@dataclass(frozen=True)
class Output:
    """A translation of one example.

    Attributes:
      text: the translation.
      score: the teacher's score; None for a translation made elsewhere, and for an original target.
      cut_off: whether the teacher reached its length limit before EOS.
      original: whether it is the target that the example had before.
    """

    text: str
    score: float | None = None
    cut_off: bool = False
    original: bool = False


def write_train_split(
    directory: Path,
    vocabulary: Vocabulary,
    sources: Iterable[Sequence[Example]],
    outputs: Iterable[Sequence[Sequence[Output]]],
    filters: DistillFilters,
    *,
    longest: int,
    with_originals: bool,
) -> tuple[SplitManifest, int, Counter[str]]:
    """Writes the records, and both text files.

    Args:
      directory: the folder of the new set.
      vocabulary: encodes the translations.
      sources: the translated examples, by chunk.
      outputs: of each of them its translations, in the same chunks.
      filters: which translations are left out.
      longest: the largest number of tokens that a target may have.
      with_originals: whether the targets of the examples are written, too.

    Returns:
      The split's manifest, how many of its targets are originals, and the counts left out by reason: one of `filters`,
      or 'duplicate' for a text that the source has already.
    """
    for stale in directory.glob("train-[0-9][0-9][0-9][0-9][0-9].array_record*"):
        stale.unlink()
    writer = SplitWriter(directory, "train", PrepareSettings().records_per_shard)
    originals, left_out = 0, Counter[str]()
    with contextlib.ExitStack() as stack:
        local = [stack.enter_context(replacing(directory / name)) for name in (_KEPT_FILE, _LEFT_OUT_FILE)]
        kept, rest = (stack.enter_context(path.open("w", encoding="utf-8")) for path in local)
        for examples, chunk in zip(sources, outputs, strict=True):
            targets = _targets(examples, chunk, vocabulary, with_originals)
            learned = set()
            for row, output, ids in targets:
                example = examples[row]
                record = {"source": example.source_text, "target": output.text, "score": output.score}
                if (row, output.text) in learned:
                    reason = "duplicate"
                elif output.original:
                    reason = None
                else:
                    reason = filters.reason(example, output.text, ids, longest=longest, cut_off=output.cut_off)
                if reason:
                    left_out[reason] += 1
                    rest.write(json.dumps(record | {"reason": reason}, ensure_ascii=False) + "\n")
                else:
                    learned.add((row, output.text))
                    originals += output.original
                    kept.write(json.dumps(record, ensure_ascii=False) + "\n")
                    writer.write(example.source_ids, ids, example.source_text.encode(), output.text.encode())
    split = writer.close(dropped=left_out["over_long"], truncated=0, skipped_empty=left_out["empty"])
    return split, originals, left_out


def _targets(
    examples: Sequence[Example], chunk: Sequence[Sequence[Output]], vocabulary: Vocabulary, with_originals: bool
) -> Iterator[tuple[int, Output, np.ndarray]]:
    """Yields (row of the example, target, its token ids) of a chunk; of each example, its original target last."""
    encoded = iter(vocabulary.encode_batch([output.text for outputs in chunk for output in outputs]))
    for row, (example, outputs) in enumerate(zip(examples, chunk, strict=True)):
        for output in outputs:
            yield row, output, np.asarray([*next(encoded), EOS_ID], np.int32)
        if with_originals:
            # Its text may be longer than the ids, which can be truncated.
            yield row, Output(example.target_text, original=True), example.target_ids
