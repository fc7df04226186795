"""Translating files, line by line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from padir.errors import PadirError
from padir.files.lines import Rejects, check_inputs, count_lines, lines_of_all, writing
from padir.inference.lines import FORMATS, Counts, LineTranslator
from padir.inference.shards import Hosts, translate_shards
from padir.inference.translator import check_batch_size, load
from padir.models.kinds import DecodeConfig
from padir.progress import progress


def translate_files(
    *,
    run_dir: str,
    inputs: Sequence[str] = ("-",),
    input_format: str = "lines",
    input_field: str = "text",
    output: str = "-",
    output_format: str = "lines",
    rejects: str | None = None,
    shards: int | None = None,
    compress: bool = False,
    host_index: int | None = None,
    num_hosts: int | None = None,
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    compute_type: str | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Counts:
    """Translates lines of files, batch by batch, in input order and constant memory.

    16 batches of lines are read at a time and sorted by length; from standard input as many of them as have come
    when it pauses, so that a person or a program that waits for its answer gets it.

    A line that cannot be translated (empty, invalid UTF-8, too long) goes to the rejects file as JSON with
    file, line number, reason and text. In 'lines' output it leaves an empty line, so that line n still
    translates line n; in 'jsonl' output every record names its file and line.

    With `shards` the job can be large: `output` is a folder, several hosts divide its shards among themselves, and one
    that was killed goes on with the shards that are missing; see `padir.inference.shards`.

    Args:
      run_dir: the trained model.
      inputs: text files, plain or .gz; '-' is standard input.
      input_format: 'lines' (a text a line) or 'jsonl' (a JSON object a line).
      input_field: where a JSON object has its text.
      output: where to write; '-' is standard output. A file is `<output>.partial` until it is whole, and stays
        so where the job fails; one whose name ends in .gz is compressed.
      output_format: 'lines' (text only) or 'jsonl' (text, score, steps_run, predicted_length; of JSON also input).
      rejects: the rejects file; beside `output` if None, or `rejects.jsonl` here for standard output. It is
        written only if there are rejects. With shards it is `rejects.jsonl` in their folder.
      shards: how many files of the same share of the input's bytes to write; None writes one stream.
      compress: whether shards are compressed with gzip.
      host_index, num_hosts: which of how many hosts this is, where they do not know of one another; those of a
        `jax.distributed` job do. Host i translates shards i, i + num_hosts, …
      decode: how to decode; the model's default if None.
      rescore_with: an autoregressive model to rank a parallel model's hypotheses with.
      compute_type: 'bfloat16' or 'int8' to round the factors of products with weights; see `padir.load`.
      batch_size: lines decoded at a time.
      seed: of decoding, where it is random.

    Returns:
      How many lines were read, translated and rejected; with shards those of all hosts, if all have finished.

    Raises:
      PadirError: a missing file, an unknown format, a batch size below 1, options that contradict each other; with
        shards also a folder that holds another job, or counts that do not add up.
    """
    for name, value in (("output_format", output_format), ("input_format", input_format)):
        if value not in FORMATS:
            raise PadirError(f"translate.{name}: unknown {value!r}; choose {' or '.join(FORMATS)}")
    check_batch_size(batch_size)
    check_inputs(inputs)
    if shards is None:
        hosts = None
        if compress or host_index is not None or num_hosts is not None:
            raise PadirError("translate: compress, host_index and num_hosts are for shards; say how many shards")
    else:
        hosts = Hosts.given(host_index, num_hosts)
        _check_shards(shards, inputs, output, rejects)
    translator = load(run_dir, seed=seed, rescore_with=rescore_with, compute_type=compute_type)
    checked = translator.checked(decode, has_lengths=False)
    lines = LineTranslator(translator, checked, batch_size, input_format, input_field, output_format)
    if hosts is None:
        return _translate_stream(lines, inputs, output, rejects)
    return translate_shards(lines, inputs, Path(output), shards=shards, compress=compress, hosts=hosts, seed=seed)


def _check_shards(shards: int, inputs: Sequence[str], output: str, rejects: str | None) -> None:
    if shards < 1:
        raise PadirError(f"translate.shards: {shards} is not at least 1; None writes one stream")
    if "-" in inputs or output == "-":
        raise PadirError("translate.shards: shards are made of files: name --inputs, and as --output a folder")
    if rejects is not None:
        raise PadirError(f"translate.rejects: with shards they go to {output}/rejects.jsonl; leave it out")


def _translate_stream(lines: LineTranslator, inputs: Sequence[str], output: str, rejects: str | None) -> Counts:
    """Reads, translates and writes chunk by chunk; arguments of `translate_files`, all checked."""
    if rejects is None:
        rejects = "rejects.jsonl" if output == "-" else f"{output}.rejects.jsonl"
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(writing(output))
        reject = stack.enter_context(Rejects(rejects))
        bar = stack.enter_context(progress(label="translate", unit="lines"))
        if not bar.disable:
            bar.total = count_lines(inputs)
        if output != "-":
            # Rejects of an earlier run into the same file are no longer true.
            Path(rejects).unlink(missing_ok=True)
        counts = lines.translate(lines_of_all(inputs), out, reject, lambda group: bar.update(group.read))
    print(f"{counts}{f'; rejects in {rejects}' if counts.rejected else ''}", file=sys.stderr)
    return counts
