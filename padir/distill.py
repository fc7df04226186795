"""Sequence-level distillation: a teacher's translations become the student's targets (layer 8; paper section 4.2.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from padir.data.prepare_process import prepare_in_process
from padir.data.records import MANIFEST_NAME, Manifest, PreparedSet, PrepareSettings, TaskConfig
from padir.errors import PadirError
from padir.evaluate import decode_examples
from padir.models import DecodeConfig
from padir.run_directory import check_vocabulary, write_text
from padir.translate import load


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
    test splits, and the same vocabulary, so a model trained on it is evaluated like any other. Its text
    stays beside it: `<output_dir>/text/{train,validation,test}.jsonl`, with the teacher's score.

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
    translator = load(run_dir)
    data = PreparedSet.open(data_dir)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, run_dir)
    source = data.split(split)
    examples = source.read(range(len(source) if limit is None else min(limit, len(source))))
    translations = decode_examples(translator, examples, decode, batch_size=batch_size, label="distill")

    text = directory / "text"
    text.mkdir(parents=True, exist_ok=True)
    # An empty hypothesis teaches nothing and is no valid target.
    kept = [(e.source_text, t.text, t.score) for e, t in zip(examples, translations, strict=True) if t.text.strip()]
    files = {"train": _write_pairs(text / "train.jsonl", kept)}
    for name in data.manifest.splits.keys() & {"validation", "test"}:
        held_out = data.split(name)
        pairs = ((example.source_text, example.target_text, None) for example in held_out.read(range(len(held_out))))
        files[name] = _write_pairs(text / f"{name}.jsonl", pairs)
    manifest = data.manifest
    task = TaskConfig(
        "tasks.text_files",
        f"{manifest.task.name}_distilled",
        {
            "format": "jsonl",
            **files,
            "source_language": manifest.source_language,
            "target_language": manifest.target_language,
        },
    )
    settings = PrepareSettings(
        vocabulary=str(data.directory / "vocabulary.model"),
        max_source_length=manifest.settings["max_source_length"],
        max_target_length=manifest.settings["max_target_length"],
    )
    return prepare_in_process(task, directory, settings)


def _write_pairs(path: Path, pairs: Iterable[tuple[str, str, float | None]]) -> str:
    lines = []
    for source, target, teacher_score in pairs:
        record = {"source": source, "target": target}
        if teacher_score is not None:
            record["score"] = teacher_score
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))
    return str(path.resolve())
