"""Sequence-level distillation: a teacher's translations become the student's targets (paper section 4.2.3).

Layout::

    <output_dir>/translations/<chunk>.jsonl   translations of the teacher, a line for each source; deleted at the end
    <output_dir>/train-*.array_record         the examples that the student learns from; manifest.json is written last
    <output_dir>/train.jsonl                  the same examples as text, with the teacher's scores
    <output_dir>/left_out.jsonl               the other translations, with the reason for leaving them out

The file of a chunk appears only when it is complete. A job that is killed and restarted decodes only the chunks that
are missing. Process i of n decodes chunks i, i + n, …, and the first process writes the set when all chunks exist. It
holds a lock meanwhile, in a bucket a lease: another job, or a process that was taken for dead, could do the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from padir.data.manifest import (
    DISTILL_MODULE,
    MANIFEST_NAME,
    VOCABULARY_NAME,
    Manifest,
    TaskConfig,
)
from padir.data.records import PreparedSet, lengths_name
from padir.data.sources import read_lines
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file, make_folder, remove_folder, write_text
from padir.files.locks import alone_in, locked
from padir.files.paths import as_path, files_below, is_bucket
from padir.inference.distill_filters import DistillFilters
from padir.inference.distilled_set import Output, write_train_split
from padir.inference.translation import Translation
from padir.inference.translator import Translator, load
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DecodeConfig
from padir.progress import progress
from padir.runs.describe import params_sha256
from padir.runs.directory import check_vocabulary, differences
from padir.runtime.distributed import first_decides, first_process, is_first, wait_for_all

TRANSLATIONS_FOLDER = "translations"
_REQUEST_FILE = "request.json"
_USUAL_FILTERS = DistillFilters()
# In a bucket, the lease of the process that writes the set.
_LEASE = ".distill.lock"


def distill(
    *,
    data_dir: str,
    output_dir: str,
    run_dir: str | None = None,
    translations: str | None = None,
    split: str = "train",
    decode: DecodeConfig | None = None,
    compute_type: str | None = None,
    filters: DistillFilters = _USUAL_FILTERS,
    all_hypotheses: bool = False,
    with_originals: bool = False,
    batch_size: int = 128,
    chunk_size: int = 8192,
    limit: int | None = None,
    data_cache: str | None = None,
    seed: int = 0,
) -> Manifest:
    """Builds a prepared set whose targets are a teacher's translations.

    The translated examples become the train split of the new set. With `all_hypotheses` a source has several
    translations there, and with `with_originals` the target that it had before, too; no two of them have the same text.
    Validation split, test split, vocabulary and the checker of translations stay the same, so a model trained on the
    new set is evaluated like any other. A job that is killed and restarted decodes only the missing chunks, and ends
    with the same set. Asked for once more, a complete set stays as it is.

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
      filters: which translations are left out. Originals are not filtered.
      all_hypotheses: whether the student learns from all hypotheses that the decode returns, not only the best one.
      with_originals: whether the student learns from the original targets, too.
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
        of translations does not have one line per example, no translation is left, or `all_hypotheses` is asked of
        what returns one.
    """
    if (run_dir is None) == (translations is None) or (translations is not None and (decode or compute_type)):
        raise PadirError(
            "distill: give either run_dir (a teacher, with decode and compute_type if needed) or translations (a file)"
        )
    job = _Job(as_path(output_dir), PreparedSet.open(data_dir, data_cache), split, limit, chunk_size)
    if with_originals:
        job.request["with_originals"] = True
    if translations is not None:
        if all_hypotheses:
            raise PadirError("distill.all_hypotheses: a file of translations has only one of each source")
        outputs = _given(job, as_path(translations))
        if job.claimed({"translations": str(as_path(translations).resolve())}, filters):
            _write_set(job, outputs, filters, job.data.manifest.settings["max_target_length"])
        return Manifest.load(job.directory)
    translator = load(run_dir, seed=seed, compute_type=compute_type)
    check_vocabulary(job.data.vocabulary(), translator.vocabulary.hash, run_dir)
    decode = _checked(decode, translator, all_hypotheses)
    teacher = {"teacher": str(as_path(run_dir).resolve()), "teacher_step": translator.step}
    teacher["teacher_sha256"] = params_sha256(translator.params)
    if all_hypotheses:
        teacher["all_hypotheses"] = True
    if job.claimed(teacher | {"decode": repr(decode), "compute_type": translator.compute_type, "seed": seed}, filters):
        _decode(job, translator, decode, batch_size, all_hypotheses)
        wait_for_all()
        _write_set(job, _decoded(job), filters, translator.model.max_target_length)
    return Manifest.load(job.directory)


def _checked(decode: DecodeConfig | None, translator: Translator, all_hypotheses: bool) -> DecodeConfig:
    """The decode that was asked for, or that of the teacher's kind."""
    if decode is None and isinstance(translator.model, AutoregressiveModel):
        decode = BeamSearch(beam_size=5, num_hypotheses=1)
    decode = translator.checked(decode)
    if all_hypotheses and _num_returned(decode) == 1:
        told = f"distill.all_hypotheses: this {type(decode).__name__} returns one hypothesis of each source"
        raise PadirError(f"{told}; let it return several (BeamSearch.num_hypotheses, Autoregressive.num_samples)")
    return decode


def _num_returned(decode: DecodeConfig) -> int:
    """How many hypotheses of a source there are in the result."""
    match decode:
        case BeamSearch():
            return decode.num_returned
        case Refinement():
            return decode.keep_hypotheses or decode.hypotheses_per_source
        case Verified():
            return 1
        case _:
            return decode.num_samples


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
            "data_sha256": _identity(data.manifest, split),
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
            made = PreparedSet.open(self.directory)
            for split in made.manifest.splits:
                made.split(split)  # Raises if a file is missing or damaged.
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


def _identity(manifest: Manifest, split: str) -> str:
    """A hash of what a split was prepared from, wherever that lies, and of what it holds."""
    files, shape = sorted(manifest.source_files.values()), dataclasses.asdict(manifest.splits[split])
    return hashlib.sha256(json.dumps([manifest.vocabulary_hash, files, shape]).encode()).hexdigest()


def _decode(job: _Job, translator: Translator, decode: DecodeConfig, batch_size: int, all_hypotheses: bool) -> None:
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
            lines = [_outputs(each, None if all_hypotheses else 1) for each in translated]
            write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _outputs(translation: Translation, most: int | None) -> list[dict[str, Any]]:
    """The best hypotheses of a source, as `Output` has them; all if `most` is None."""
    hypotheses = itertools.islice(zip(translation.hypotheses, translation.hypotheses_cut_off, strict=True), most)
    return [{"text": text, "score": score, "cut_off": cut_off} for (text, score), cut_off in hypotheses]


def _decoded(job: _Job) -> Iterator[list[list[Output]]]:
    """Yields the translations that `_decode` wrote, one chunk at a time."""
    for path, rows in job.chunks.items():
        try:
            outputs = [_parsed(line) for _, line in read_lines(path)]
        except StorageError:
            raise
        except (ValueError, TypeError) as error:
            raise PadirError(f"{path}: damaged ({error}); delete it and run the same command again") from error
        if len(outputs) != len(rows):
            raise PadirError(
                f"{path}: damaged ({len(outputs)} of {len(rows)} lines); delete it and run the same command again"
            )
        yield outputs


def _parsed(line: str) -> list[Output]:
    """The translations of one source; raises ValueError if there is none."""
    if not (outputs := [Output(**output) for output in json.loads(line)]):
        raise ValueError("a source without a translation")
    return outputs


def _given(job: _Job, path: Path) -> Iterator[list[list[Output]]]:
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
    return ([[Output(text)] for text in itertools.islice(lines, len(rows))] for rows in job.chunks.values())


@first_process
def _write_set(job: _Job, outputs: Iterator[list[list[Output]]], filters: DistillFilters, longest: int) -> None:
    """Writes the new set: the train split, the files it shares with the old set, and last the manifest."""
    lock = locked(job.directory / _LEASE) if is_bucket(job.directory) else alone_in(job.directory, "writing this set")
    with lock:
        # Another process may have written the same set meanwhile.
        if (job.directory / MANIFEST_NAME).exists():
            job.check_complete(filters)
            remove_folder(job.directory / TRANSLATIONS_FOLDER, ignore_errors=True)
        else:
            _write_files(job, outputs, filters, longest)


def _write_files(job: _Job, outputs: Iterator[list[list[Output]]], filters: DistillFilters, longest: int) -> None:
    old = job.data.manifest
    sources = (job.source.read(rows) for rows in job.chunks.values())
    with_originals = "with_originals" in job.request
    train, originals, left_out = write_train_split(
        job.directory, job.data.vocabulary(), sources, outputs, filters, longest=longest, with_originals=with_originals
    )
    kept = train.num_examples - originals
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "none"
    among = f" and {originals} originals" if with_originals else ""
    total = train.num_examples + left_out.total()
    print(f"distill: kept {kept} translations{among} of {total} targets; left out: {counts}", file=sys.stderr)
    if not kept:
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
