"""Sequence-level distillation: a teacher's translations become the student's targets (layer 8; paper section 4.2.3)."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from padir.data.manifest import MANIFEST_NAME, VOCABULARY_NAME, Manifest, PrepareSettings, SplitManifest, TaskConfig
from padir.data.records import Example, PreparedSet, SplitWriter, lengths_name
from padir.errors import PadirError
from padir.evaluate import decode_examples
from padir.models import DecodeConfig
from padir.run_directory import check_vocabulary, write_text
from padir.translate import Translation, Translator, load
from padir.types import EOS_ID


def distill(
    *,
    run_dir: str,
    data_dir: str,
    output_dir: str,
    split: str = "train",
    decode: DecodeConfig | None = None,
    batch_size: int = 128,
    limit: int | None = None,
) -> Manifest:
    """Decodes a split with a teacher and prepares the result as a set of its own.

    The new set has the teacher's translations as its train split, the original pairs as its validation and
    test splits, and the same vocabulary and checker, so a model trained on it is evaluated like any other.
    The teacher's text and scores stay beside it in `<output_dir>/train.jsonl`. Neither TensorFlow nor
    Seqio is needed: SentencePiece gives the same ids as the task's own preprocessing.

    Args:
      run_dir: the teacher.
      data_dir: the prepared set it was trained on.
      output_dir: where the new set goes.
      split: which split to decode.
      decode: how; the teacher's default if None.
      batch_size: sentences decoded at a time.
      limit: decode only the first so many; None decodes all.

    Returns:
      The new set's manifest.

    Raises:
      PadirError: vocabularies differ, or `output_dir` holds a finished set.
    """
    directory = Path(output_dir)
    if (directory / MANIFEST_NAME).exists():
        raise PadirError(f"{directory}: already holds a prepared set; choose another output_dir or delete this one")
    if limit is not None and limit < 1:
        raise PadirError(f"distill.limit: {limit} must be at least 1, or None for all")
    translator = load(run_dir)
    data = PreparedSet.open(data_dir)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, run_dir)
    source = data.split(split)
    examples = source.read(range(len(source) if limit is None else min(limit, len(source))))
    translations = decode_examples(translator, examples, decode, batch_size=batch_size, label="distill")

    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data.directory / VOCABULARY_NAME, directory / VOCABULARY_NAME)
    splits = {"train": _write_train_split(directory, examples, translations, translator)}
    for name in data.manifest.splits:
        # What was decoded is the train split now; an original one must not take its place.
        if name in (split, "train"):
            continue
        splits[name] = data.manifest.splits[name]
        for file in (*(file for file, _ in splits[name].shards), lengths_name(name)):
            shutil.copyfile(data.directory / file, directory / file)
    provenance = {
        "teacher": str(Path(run_dir).resolve()),
        "teacher_step": translator.step,
        "decode": repr(translator.checked(decode)),
        "source_task": dataclasses.asdict(data.manifest.task),
        "split": split,
        "limit": limit,
    }
    manifest = dataclasses.replace(
        data.manifest,
        task=TaskConfig(__name__, f"{data.manifest.task.name}_distilled", provenance),
        splits=splits,
    )
    manifest.save(directory)
    return manifest


def _write_train_split(
    directory: Path, examples: list[Example], translations: list[Translation], translator: Translator
) -> SplitManifest:
    """Records of (source, teacher's translation), and the same as text with the teacher's score."""
    longest = translator.model.max_target_length
    writer = SplitWriter(directory, "train", PrepareSettings().records_per_shard)
    lines: list[str] = []
    dropped = empty = 0
    for example, translation in zip(examples, translations, strict=True):
        target = [*translator.vocabulary.encode(translation.text), EOS_ID]
        if len(target) == 1 or len(target) > longest:
            # An empty hypothesis teaches nothing; one over the limit has no bucket.
            empty, dropped = empty + (len(target) == 1), dropped + (len(target) > longest)
            continue
        writer.write(
            example.source_ids,
            np.asarray(target, np.int32),
            example.source_text.encode("utf-8"),
            translation.text.encode("utf-8"),
        )
        record = {"source": example.source_text, "target": translation.text, "score": translation.score}
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    if empty or dropped:
        print(f"distill: left out {empty} empty and {dropped} over-long translations", file=sys.stderr)
    write_text(directory / "train.jsonl", "".join(lines))
    return writer.close(dropped=dropped, truncated=0, skipped_empty=empty)
