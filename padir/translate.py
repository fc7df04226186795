"""Translating files, line by line (layer 8)."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from padir.errors import PadirError
from padir.line_files import Line, Rejects, check_inputs, count_lines, read_chunks, writing
from padir.models import DecodeConfig
from padir.progress import progress
from padir.translator import Translation, Translator, check_batch_size, load

# Lines are read so many batches at a time, so that sorting them by length has something to sort.
_BATCHES_PER_READ = 16


@dataclass(frozen=True)
class Counts:
    """Lines of a `translate_files` job; read = translated + rejected."""

    read: int
    translated: int
    rejected: int


def translate_files(
    *,
    run_dir: str,
    inputs: Sequence[str] = ("-",),
    output: str = "-",
    output_format: str = "lines",
    rejects: str | None = None,
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Counts:
    """Translates lines of files, batch by batch, in input order and constant memory.

    16 batches of lines are read at a time and sorted by length; from standard input as many of them as have come
    when it pauses, so that a person or a program that waits for its answer gets it.

    A line that cannot be translated (empty, invalid UTF-8, too long) goes to the rejects file as JSON with
    file, line number, reason and text. In 'lines' output it leaves an empty line, so that line n still
    translates line n; in 'jsonl' output every record names its file and line.

    Args:
      run_dir: the trained model.
      inputs: text files, plain or .gz; '-' is standard input.
      output: where to write; '-' is standard output. A file is `<output>.partial` until it is whole, and stays
        so where the job fails.
      output_format: 'lines' (text only) or 'jsonl' (text, score, steps_run, predicted_length).
      rejects: the rejects file; beside `output` if None, or `rejects.jsonl` here for standard output. It is
        written only if there are rejects.
      decode: how to decode; the model's default if None.
      rescore_with: an autoregressive model to rank a parallel model's hypotheses with.
      batch_size: lines decoded at a time.
      seed: of decoding, where it is random.

    Returns:
      How many lines were read, translated and rejected.

    Raises:
      PadirError: a missing file, an unknown format or a batch size below 1.
    """
    if output_format not in ("lines", "jsonl"):
        raise PadirError(f"translate.output_format: unknown {output_format!r}; choose lines or jsonl")
    check_batch_size(batch_size)
    check_inputs(inputs)
    if rejects is None:
        rejects = "rejects.jsonl" if output == "-" else f"{output}.rejects.jsonl"
    translator = load(run_dir, seed=seed, rescore_with=rescore_with)
    counts = _translate_all(translator, inputs, output, output_format, rejects, translator.checked(decode), batch_size)
    left_out = f"{counts.rejected} rejected" + (f"; rejects in {rejects}" if counts.rejected else "")
    print(f"read {counts.read} lines: {counts.translated} translated, {left_out}", file=sys.stderr)
    return counts


def _translate_all(
    translator: Translator,
    inputs: Sequence[str],
    output: str,
    output_format: str,
    rejects: str,
    decode: DecodeConfig,
    batch_size: int,
) -> Counts:
    """Reads, translates and writes chunk by chunk; arguments of `translate_files`, all checked."""
    read = rejected = 0
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(writing(output))
        reject = stack.enter_context(Rejects(rejects))
        bar = stack.enter_context(progress(label="translate", unit="lines"))
        if not bar.disable:
            bar.total = count_lines(inputs)
        if output != "-":
            # Rejects of an earlier run into the same file are no longer true.
            Path(rejects).unlink(missing_ok=True)
        for chunk in read_chunks(inputs, _BATCHES_PER_READ * batch_size):
            results = _translate_lines(translator, chunk, decode, batch_size)
            for line, result in zip(chunk, results, strict=True):
                if isinstance(result, Translation):
                    out.write(_format(result, line, output_format))
                else:
                    rejected += 1
                    reject.write(line, result)
                    out.write("\n" if output_format == "lines" else "")
            out.flush()
            read += len(chunk)
            bar.update(len(chunk))
    return Counts(read, read - rejected, rejected)


def _translate_lines(
    translator: Translator, chunk: list[Line], decode: DecodeConfig, batch_size: int
) -> list[Translation | str]:
    """A `Translation` per line, or why it is rejected."""
    results: list[Translation | str] = []
    sources = []
    for line in chunk:
        try:
            sources.append(translator.tokenize(line.raw.decode("utf-8")))
            results.append("")
        except UnicodeDecodeError as error:
            results.append(f"invalid UTF-8 at byte {error.start + 1}")
        except PadirError as error:
            results.append(str(error))
    translations = iter(translator.translate_ids(sources, decode, batch_size=batch_size))
    return [result or next(translations) for result in results]


def _format(translation: Translation, line: Line, output_format: str) -> str:
    if output_format == "lines":
        return translation.text + "\n"
    record = {
        "file": line.file,
        "line": line.number,
        "text": translation.text,
        "score": translation.score,
        "steps_run": translation.steps_run,
        "predicted_length": translation.predicted_length,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"
