"""Sequence-level distillation: a teacher's translations become the student's targets (paper section 4.2.3).

Layout::

    <output_dir>/translations/<chunk>.jsonl   translations of the teacher, one per line; deleted at the end
    <output_dir>/train-*.array_record         the examples that the student learns from; manifest.json is written last
    <output_dir>/train.jsonl                  the same examples as text, with the teacher's scores
    <output_dir>/left_out.jsonl               the other translations, with the reason for leaving them out

The file of a chunk appears only when it is complete. A job that is killed and restarted decodes only the chunks that
are missing. Process i of n decodes chunks i, i + n, …, and the first process writes the set when all chunks exist. In
a bucket it holds a lease meanwhile, because a process that was taken for dead could do the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.data.manifest import (
    DISTILL_MODULE,
    MANIFEST_NAME,
    VOCABULARY_NAME,
    Manifest,
    PrepareSettings,
    SplitManifest,
    TaskConfig,
)
from padir.data.records import Example, PreparedSet, SplitWriter, lengths_name
from padir.data.sources import read_lines
from padir.decoding.beam import BeamSearch
from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file, make_folder, remove_folder, replacing, write_text
from padir.files.locks import locked
from padir.files.paths import as_path, files_below, is_bucket
from padir.inference.translator import Translator, load
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DecodeConfig
from padir.progress import progress
from padir.runs.directory import check_vocabulary, differences
from padir.runtime.distributed import first_decides, first_process, is_first, wait_for_all
from padir.types import EOS_ID

TRANSLATIONS_FOLDER = "translations"
_REQUEST_FILE = "request.json"
# In a bucket, the lease of the process that writes the set.
_LEASE = ".distill.lock"
_KEPT_FILE, _LEFT_OUT_FILE = "train.jsonl", "left_out.jsonl"
# Repetition loops of decoders are seldom longer than this many tokens.
_LONGEST_LOOP = 4


@dataclass(frozen=True)
class DistillFilters:
    """Which translations to leave out of a distilled set. Empty and over-long ones are always left out.

    Attributes:
      cut_off: leave out a translation that reached the decoder's length limit before EOS.
      max_length_ratio: leave out a pair if the longer side has more than this many times the tokens of the shorter
        side, EOS included. None sets no limit.
      identical: leave out a translation that equals its source up to white space.
      max_repeats: leave out a translation in which a sequence of 1 to 4 tokens occurs more than this many times in a
        row. None sets no limit.
    """

    cut_off: bool = True
    max_length_ratio: float | None = None
    identical: bool = False
    max_repeats: int | None = None

    def __post_init__(self):
        if self.max_length_ratio is not None and self.max_length_ratio < 1:
            raise PadirError(f"DistillFilters.max_length_ratio: {self.max_length_ratio} is below 1; None sets no limit")
        if self.max_repeats is not None and self.max_repeats < 1:
            raise PadirError(f"DistillFilters.max_repeats: {self.max_repeats} is not at least 1; None sets no limit")

    def reason(self, example: Example, text: str, ids: Sequence[int], *, longest: int, cut_off: bool) -> str | None:
        """Returns why a translation is left out, or None if it is kept.

        Args:
          example: the source.
          text: the translation.
          ids: its token ids, ending in EOS.
          longest: the largest number of tokens that a target may have.
          cut_off: whether the teacher reached its length limit before EOS.

        Returns:
          The first reason that applies of 'empty', 'cut_off', 'over_long', 'length_ratio', 'identical' and
          'repetition', or None.
        """
        shorter, longer = sorted((len(example.source_ids), len(ids)))
        reasons = {
            # The only token of an empty translation is EOS.
            "empty": len(ids) == 1,
            "cut_off": self.cut_off and cut_off,
            "over_long": len(ids) > longest,
            "length_ratio": self.max_length_ratio is not None and longer > self.max_length_ratio * shorter,
            "identical": self.identical and example.source_text.split() == text.split(),
            "repetition": self.max_repeats is not None and most_repeats(ids) > self.max_repeats,
        }
        return next((name for name, applies in reasons.items() if applies), None)


def most_repeats(ids: Sequence[int]) -> int:
    """Returns how often in a row the most repeated sequence of 1 to 4 ids occurs.

    For 5 7 8 7 8 7 8 9 it is 3; without any repetition it is 1.
    """
    most = 1
    for size in range(1, _LONGEST_LOOP + 1):
        run = 0
        for earlier, later in zip(ids, ids[size:], strict=False):
            run = run + 1 if earlier == later else 0
            most = max(most, run // size + 1)
    return most


def distill(
    *,
    data_dir: str,
    output_dir: str,
    run_dir: str | None = None,
    translations: str | None = None,
    split: str = "train",
    decode: DecodeConfig | None = None,
    compute_type: str | None = None,
    filters: DistillFilters = DistillFilters(),
    batch_size: int = 128,
    chunk_size: int = 8192,
    limit: int | None = None,
    data_cache: str | None = None,
    seed: int = 0,
) -> Manifest:
    """Builds a prepared set whose targets are a teacher's translations.

    The translated examples become the train split of the new set. Validation split, test split, vocabulary and the
    checker of translations stay the same, so a model trained on the new set is evaluated like any other. A job that is
    killed and restarted decodes only the missing chunks, and ends with the same set. Asked for once more, a complete
    set stays as it is.

    Args:
      data_dir: the prepared set whose sources are translated.
      output_dir: the folder of the new set.
      run_dir: the run directory of the teacher. Give either `run_dir` or `translations`.
      translations: a text file, plain or .gz, with translations made elsewhere. Line n translates example n of the
        split.
      split: the split to translate.
      decode: the decode configuration. By default an autoregressive teacher uses beam search with a beam of 5, and a
        parallel teacher its default.
      compute_type: 'bfloat16', 'int8' or 'auto' to round the factors of products with weights; see `padir.load`.
      filters: which translations are left out.
      batch_size: the number of sentences decoded at a time.
      chunk_size: the number of sentences per chunk. A chunk is sorted by length and held in memory; a killed job
        loses at most one chunk per process.
      limit: translate only this many examples, the first of the split; None translates all.
      data_cache: a local folder, to which the split is copied before it is read if `data_dir` is in a bucket; None
        reads it there, one request a record.
      seed: the seed of random decoding.

    Returns:
      The manifest of the new set. The options of its task say where the translations come from and how many were left
      out for each reason.

    Raises:
      PadirError: the vocabularies differ, `output_dir` holds another set or the beginning of one, a file
        of translations does not have one line per example, or no translation is left.
    """
    if (run_dir is None) == (translations is None) or (translations is not None and (decode or compute_type)):
        raise PadirError(
            "distill: give either run_dir (a teacher, with decode and compute_type if needed) or translations (a file)"
        )
    job = _Job(as_path(output_dir), PreparedSet.open(data_dir, data_cache), split, limit, chunk_size)
    if translations is not None:
        outputs = _given(job, as_path(translations))
        if job.claimed({"translations": str(as_path(translations).resolve())}, filters):
            _write_set(job, outputs, filters, job.data.manifest.settings["max_target_length"])
        return Manifest.load(job.directory)
    translator = load(run_dir, seed=seed, compute_type=compute_type)
    check_vocabulary(job.data.vocabulary(), translator.vocabulary.hash, run_dir)
    if decode is None and isinstance(translator.model, AutoregressiveModel):
        decode = BeamSearch(beam_size=5, num_hypotheses=1)
    decode = translator.checked(decode)
    teacher = {"teacher": str(as_path(run_dir).resolve()), "teacher_step": translator.step}
    if job.claimed(teacher | {"decode": repr(decode), "compute_type": translator.compute_type, "seed": seed}, filters):
        _decode(job, translator, decode, batch_size)
        wait_for_all()
        _write_set(job, _decoded(job), filters, translator.model.max_target_length)
    return Manifest.load(job.directory)


class _Job:
    """A distillation: the split to translate, its chunks, and the folder of the new set.

    Attributes:
      directory: the folder of the new set.
      data: the set whose sources are translated.
      source: the split that is translated.
      name: the name of that split.
      chunks: maps each file of translations to the rows of the split that it holds.
      request: everything that decides the translations, as JSON values.
      complete: whether an earlier job has made the set; known to the first process.
    """

    complete = False

    def __init__(self, directory: Path, data: PreparedSet, split: str, limit: int | None, chunk_size: int):
        for name, value in (("limit", limit), ("chunk_size", chunk_size)):
            if value is not None and value < 1:
                raise PadirError(f"distill.{name}: {value} must be at least 1{', or None for all' * (name == 'limit')}")
        self.directory, self.data, self.name, self.source = directory, data, split, data.split(split)
        count = len(self.source) if limit is None else min(limit, len(self.source))
        self.chunks = {
            directory / TRANSLATIONS_FOLDER / f"{number:05d}.jsonl": range(start, min(start + chunk_size, count))
            for number, start in enumerate(range(0, count, chunk_size))
        }
        self.request: dict[str, Any] = {
            "source_task": dataclasses.asdict(data.manifest.task),
            "split": split,
            "limit": limit,
            "sentences": count,
            "chunk_size": chunk_size,
        }

    def claimed(self, origin: dict[str, Any], filters: DistillFilters) -> bool:
        """Adds the origin of the translations to the request and stores it; False if the set is complete already.

        Raises:
          PadirError: `directory` holds another set, or translations of another request, which the message names.
        """
        self.request = json.loads(json.dumps(self.request | origin))
        self._claim(filters)
        return not first_decides(self.complete)

    @first_process
    def _claim(self, filters: DistillFilters) -> None:
        self.complete = (self.directory / MANIFEST_NAME).exists()
        if self.complete:
            self.check_complete(filters)
            # Left behind by a job that was killed at its very end.
            remove_folder(self.directory / TRANSLATIONS_FOLDER, ignore_errors=True)
            print(f"{self.directory}: already distilled", file=sys.stderr)
            return
        path = self.directory / TRANSLATIONS_FOLDER / _REQUEST_FILE
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            self._refuse("holds the beginning of another distillation", differences(stored, self.request))
        make_folder(path.parent)
        write_text(path, json.dumps(self.request, indent=2) + "\n")

    def check_complete(self, filters: DistillFilters) -> None:
        """Refuses a complete set that is not the one that this job would make."""
        task, changes = Manifest.load(self.directory).task, ["it was not distilled"]
        if task.module == DISTILL_MODULE:
            wanted = self.request | {"filters": dataclasses.asdict(filters), "left_out": task.options["left_out"]}
            changes = differences(*(json.loads(json.dumps(options)) for options in (task.options, wanted)))
        self._refuse("already holds another prepared set", changes)

    def _refuse(self, what: str, changes: list[str]) -> None:
        if changes:
            told = f"{self.directory}: {what} ({'; '.join(changes)})"
            raise PadirError(f"{told}; choose another output_dir or delete this one")


@dataclass(frozen=True)
class _Output:
    """The translation of one example.

    Attributes:
      text: the translation.
      score: the teacher's score; None for a translation made elsewhere.
      cut_off: whether the teacher reached its length limit before EOS.
    """

    text: str
    score: float | None = None
    cut_off: bool = False


def _decode(job: _Job, translator: Translator, decode: DecodeConfig, batch_size: int) -> None:
    """Decodes the missing chunks; each process decodes its own share."""
    own = dict(itertools.islice(job.chunks.items(), jax.process_index(), None, jax.process_count()))
    there = {*files_below(job.directory / TRANSLATIONS_FOLDER)}
    missing = {path: rows for path, rows in own.items() if path.name not in there}
    total, left = (sum(map(len, chunks.values())) for chunks in (own, missing))
    if left < total:
        print(f"{job.directory}: resuming; {total - left} of {total} sentences are translated", file=sys.stderr)
    with progress(label="distill", unit="sentences", total=total, initial=total - left, active=is_first()) as bar:
        for path, rows in missing.items():
            sources = [example.source_ids for example in job.source.read(rows)]
            translated = translator.translate_ids(sources, decode, batch_size=batch_size, done=bar.update)
            outputs = [{"text": t.text, "score": t.score, "cut_off": t.cut_off} for t in translated]
            write_text(path, "".join(json.dumps(output, ensure_ascii=False) + "\n" for output in outputs))


def _decoded(job: _Job) -> Iterator[list[_Output]]:
    """Yields the translations that `_decode` wrote, one chunk at a time."""
    for path, rows in job.chunks.items():
        try:
            outputs = [_Output(**json.loads(line)) for _, line in read_lines(path)]
        except StorageError:
            raise
        except (ValueError, TypeError) as error:
            raise PadirError(f"{path}: damaged ({error}); delete it and run the same command again") from error
        if len(outputs) != len(rows):
            raise PadirError(
                f"{path}: damaged ({len(outputs)} of {len(rows)} lines); delete it and run the same command again"
            )
        yield outputs


def _given(job: _Job, path: Path) -> Iterator[list[_Output]]:
    """Returns the translations of a text file, one chunk at a time."""
    if not path.is_file():
        raise PadirError(f"{path}: no such file of translations")
    count = sum(1 for _ in read_lines(path))
    if count != len(job.source):
        raise PadirError(
            f"{path}: has {count} lines, but split {job.name} of {job.data.directory} has {len(job.source)} examples; "
            "line n must translate example n (`padir prepare` may have dropped pairs; translate those it kept)"
        )
    lines = (text.strip() for _, text in read_lines(path))
    return ([_Output(text) for text in itertools.islice(lines, len(rows))] for rows in job.chunks.values())


@first_process
def _write_set(job: _Job, outputs: Iterator[list[_Output]], filters: DistillFilters, longest: int) -> None:
    """Writes the new set: the train split, the files it shares with the old set, and last the manifest."""
    if not is_bucket(job.directory):
        _write_files(job, outputs, filters, longest)
        return
    with locked(job.directory / _LEASE):
        # Another process may have written the same set meanwhile.
        if (job.directory / MANIFEST_NAME).exists():
            job.check_complete(filters)
            remove_folder(job.directory / TRANSLATIONS_FOLDER, ignore_errors=True)
        else:
            _write_files(job, outputs, filters, longest)


def _write_files(job: _Job, outputs: Iterator[list[_Output]], filters: DistillFilters, longest: int) -> None:
    old = job.data.manifest
    train, left_out = _write_train_split(job, outputs, filters, longest)
    total = sum(map(len, job.chunks.values()))
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "none"
    print(f"distill: kept {train.num_examples} of {total} translations; left out: {counts}", file=sys.stderr)
    if not train.num_examples:
        raise PadirError(f"{job.directory}: no translation is left to learn from; left out: {counts}")
    copy_file(job.data.directory / VOCABULARY_NAME, job.directory / VOCABULARY_NAME)
    splits = {"train": train}
    for name, split in old.splits.items():
        # The translated split is the new train split; the original train split must not replace it.
        if name not in (job.name, "train"):
            splits[name] = split
            for file in (*(file for file, _ in split.shards), lengths_name(name)):
                copy_file(job.data.directory / file, job.directory / file)
    options = job.request | {"filters": dataclasses.asdict(filters), "left_out": dict(left_out)}
    manifest = dataclasses.replace(
        old, task=TaskConfig(DISTILL_MODULE, f"{old.task.name}_distilled", options), splits=splits
    )
    manifest.save(job.directory)
    remove_folder(job.directory / TRANSLATIONS_FOLDER)


def _write_train_split(
    job: _Job, outputs: Iterator[list[_Output]], filters: DistillFilters, longest: int
) -> tuple[SplitManifest, Counter[str]]:
    """Writes the records and both text files; returns the split's manifest, and the counts left out by reason."""
    for stale in job.directory.glob("train-[0-9][0-9][0-9][0-9][0-9].array_record*"):
        stale.unlink()
    vocabulary = job.data.vocabulary()
    writer = SplitWriter(job.directory, "train", PrepareSettings().records_per_shard)
    left_out: Counter[str] = Counter()
    files = [job.directory / name for name in (_KEPT_FILE, _LEFT_OUT_FILE)]
    with contextlib.ExitStack() as stack:
        local = [stack.enter_context(replacing(path)) for path in files]
        kept, rest = (stack.enter_context(path.open("w", encoding="utf-8")) for path in local)
        for rows, chunk in zip(job.chunks.values(), outputs, strict=True):
            encoded = vocabulary.encode_batch([output.text for output in chunk])
            for example, output, ids in zip(job.source.read(rows), chunk, encoded, strict=True):
                target = np.asarray([*ids, EOS_ID], np.int32)
                record = {"source": example.source_text, "target": output.text, "score": output.score}
                reason = filters.reason(example, output.text, target, longest=longest, cut_off=output.cut_off)
                if reason:
                    left_out[reason] += 1
                    rest.write(json.dumps(record | {"reason": reason}, ensure_ascii=False) + "\n")
                else:
                    kept.write(json.dumps(record, ensure_ascii=False) + "\n")
                    writer.write(example.source_ids, target, example.source_text.encode(), output.text.encode())
    return writer.close(dropped=left_out["over_long"], truncated=0, skipped_empty=left_out["empty"]), left_out
