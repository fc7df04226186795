"""`padir translate`: translates files line by line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from padir.errors import PadirError
from padir.files.lines import PARTIAL, Rejects, check_no_folder, count_lines, lines_of_all, resolved_inputs, writing
from padir.files.paths import as_path, is_bucket
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
    input_field: str | None = None,
    output: str = "-",
    output_format: str = "lines",
    rejects: str | None = None,
    shards: int | None = None,
    compress: bool = False,
    host_index: int | None = None,
    num_hosts: int | None = None,
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    verify_with: str | None = None,
    verifier: str | None = None,
    constraint: str | None = None,
    compute_type: str | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Counts:
    """Translates the lines of text files in batches, in input order and constant memory.

    16 batches of lines are read at a time and sorted by length. When standard input pauses, the lines read so far are
    translated at once, so that an interactive user or program does not have to wait.

    A line that cannot be translated (empty, invalid UTF-8, too long) goes to the rejects file as JSON with file, line
    number, reason and text. In 'lines' output it leaves an empty line, so that line n still translates line n. In
    'jsonl' output every record names its file and line.

    Every file and folder may be a gs:// address. An object is read as a stream, and written whole.

    With `shards`, `output` is a folder, and several hosts can share a large job. A job that is killed and restarted
    translates only the missing shards; see `padir.inference.shards`.

    Args:
      run_dir: the run directory of the model, or another model that `padir.load` opens.
      inputs: text files, plain or .gz; '-' is standard input.
      input_format: 'lines' (one text per line) or 'jsonl' (one JSON object per line).
      input_field: the field of a JSON object that holds the text; 'text' by default. Only for 'jsonl'.
      output: the file to write; '-' is standard output. Until the file is complete its name is `<output>.partial`,
        and if the job fails it keeps that name. A file whose name ends in .gz is compressed.
      output_format: 'lines' (only the text) or 'jsonl' (file, line, text, score, steps_run, predicted_length, all
        hypotheses if there are several, and the input object for 'jsonl' input).
      rejects: the rejects file, written only if a line is rejected. The default is `<output>.rejects.jsonl`, or
        `rejects.jsonl` in the current folder for standard output. With shards it is `rejects.jsonl` in their folder.
      shards: the number of shards, each of which translates the same number of input bytes. None writes one stream.
      compress: whether to compress shards with gzip.
      host_index: the index of this host, for hosts that are not processes of one `jax.distributed` job. Host i
        translates shards i, i + num_hosts, …
      num_hosts: the number of such hosts.
      decode: the decode configuration; the model's default if None.
      rescore_with: an autoregressive model that ranks the hypotheses of a parallel model.
      verify_with: an autoregressive model that verifies a parallel model's drafts; by default the output is that
        of its greedy decoding. See `padir.load`.
      verifier: the folder of a verifier from `padir verifier`, under which an autoregressive model generates.
      constraint: the JSON file of a constraint that every translation must obey; see `padir.data.constraints`. How many
        do not is printed: those without room for an output that does.
      compute_type: 'bfloat16', 'int8' or 'auto' to round the factors of products with weights; see `padir.load`.
      batch_size: the number of lines decoded at a time.
      seed: the seed of random decoding.

    Returns:
      The numbers of lines read, translated and rejected; with shards those of all hosts, if all have finished.

    Raises:
      PadirError: a file is missing or cannot be written, a format is unknown, the batch size is below 1, or options
        contradict each other; or at the end: there were lines, and all were rejected. With shards also: the folder
        holds another job, or counts do not add up.
    """
    for name, value in (("output_format", output_format), ("input_format", input_format)):
        if value not in FORMATS:
            raise PadirError(f"translate.{name}: unknown {value!r}; choose {' or '.join(FORMATS)}")
    if input_field is not None and input_format != "jsonl":
        raise PadirError("translate.input_field: only JSON has fields; give --input_format=jsonl, or leave it out")
    check_batch_size(batch_size)
    inputs = resolved_inputs(inputs)
    if shards is None:
        hosts = None
        if compress or host_index is not None or num_hosts is not None:
            raise PadirError("translate: compress, host_index and num_hosts need shards; give the number of shards")
        _check_output(inputs, output)
        rejects = _rejects_file(rejects, inputs, output)
    else:
        hosts = Hosts.given(host_index, num_hosts)
        _check_shards(shards, inputs, output, rejects)
    helpers = {"rescore_with": rescore_with, "verify_with": verify_with, "verifier": verifier, "constraint": constraint}
    translator = load(run_dir, seed=seed, compute_type=compute_type, **helpers)
    checked = translator.checked(decode, has_lengths=False)
    lines = LineTranslator(translator, checked, batch_size, input_format, input_field or "text", output_format)
    if hosts is None:
        counts = _translate_stream(lines, inputs, output, rejects)
    else:
        folder = as_path(output)
        counts = translate_shards(lines, inputs, folder, shards=shards, compress=compress, hosts=hosts, seed=seed)
    if counts.read and not counts.translated:
        raise PadirError("none of the lines could be translated; the rejects say why")
    return counts


def _check_shards(shards: int, inputs: Sequence[str], output: str, rejects: str | None) -> None:
    if shards < 1:
        raise PadirError(f"translate.shards: {shards} is not at least 1; None writes one stream")
    if "-" in inputs or output == "-":
        raise PadirError("translate.shards: needs files as --inputs and a folder as --output, not '-'")
    if rejects is not None:
        raise PadirError(f"translate.rejects: leave it out; with shards, rejects go to {output}/rejects.jsonl")


def _check_output(inputs: Sequence[str], output: str) -> None:
    """Refuses a folder, and an output that would replace an input: when complete, or even before the input is read."""
    check_no_folder(output)
    for written in [] if output == "-" else (output, f"{output}{PARTIAL}"):
        if any(name != "-" and as_path(name).resolve() == as_path(written).resolve() for name in inputs):
            raise PadirError(f"translate.output: {written} is an input, which would be lost; give another --output")


def _rejects_file(rejects: str | None, inputs: Sequence[str], output: str) -> str:
    if rejects is None:
        rejects = "rejects.jsonl" if output == "-" else f"{output}.rejects.jsonl"
    check_no_folder(rejects)
    place = as_path(rejects).resolve()
    if any(name != "-" and as_path(name).resolve() == place for name in inputs):
        raise PadirError(f"translate.rejects: {rejects} is an input, which would be lost; give --rejects=FILE")
    if output != "-" and as_path(output).resolve() == place:
        raise PadirError(f"translate.rejects: {rejects} is the output, too; give --rejects=FILE, another file")
    if not is_bucket(rejects) and not as_path(rejects).parent.is_dir():
        raise PadirError(f"translate.rejects: {as_path(rejects).parent} is no folder; create it, or give another file")
    return rejects


def _remove_file(path: str) -> None:
    """Removes a file or object, if it is there. What is no file, like /dev/null, stays."""
    if is_bucket(path) or as_path(path).is_file():
        as_path(path).unlink(missing_ok=True)


def _translate_stream(lines: LineTranslator, inputs: Sequence[str], output: str, rejects: str) -> Counts:
    """Reads, translates and writes one stream of lines; the arguments are those of `translate_files`, checked."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(writing(output))
        reject = stack.enter_context(Rejects(rejects))
        bar = stack.enter_context(progress(label="translate", unit="lines"))
        # An object would be fetched twice, and the first translation would wait for it.
        if not bar.disable and not any(map(is_bucket, inputs)):
            bar.total = count_lines(inputs)
        if output != "-":
            # Rejects of an earlier job with the same output are obsolete.
            _remove_file(rejects)
        counts = lines.translate(lines_of_all(inputs), out, reject, lambda group: bar.update(group.read))
    print(f"{counts}{f'; rejects in {rejects}' if counts.rejected else ''}", file=sys.stderr)
    return counts
