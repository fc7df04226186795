"""`padir trace`: translates one text and shows every step, in a page, as JSON or on the terminal."""

from __future__ import annotations

import dataclasses
import json

from padir.decoding.refinement import Refinement
from padir.errors import PadirError, kind_of
from padir.files.atomic import write_text
from padir.files.paths import as_path
from padir.inference import page
from padir.inference.document import Document
from padir.inference.trace import LENGTHS_SHOWN, watch
from padir.inference.translator import Translator, load
from padir.models.kinds import DecodeConfig


def trace(
    *,
    text: str,
    run_dir: str,
    html: str | None = None,
    output: str | None = None,
    beside: str | None = None,
    decode: DecodeConfig | None = None,
    seed: int = 0,
) -> list[Document]:
    """Translates one text and shows what each step read and wrote, how sure it was, and why it stopped.

    Args:
      text: what to translate.
      run_dir: the run directory of the model, or another model that `padir.load` opens.
      html: a page to write, which needs no server and nothing else.
      output: a JSON file to write: the document, or a list of both with `beside`.
      beside: another model to show beside it, such as the teacher; it decodes by its default configuration.
      decode: the decode configuration; if None the model's default, with 4 lengths if it is a refinement.
      seed: the seed of random decoding.

    Returns:
      The documents. Without `html` and `output` they are also printed, step by step.

    Raises:
      PadirError: a model cannot be opened, the text is empty or too long, or a file cannot be written.
    """
    documents = [_watched(load(run_dir, seed=seed), text, run_dir, decode)]
    if beside is not None:
        documents.append(_watched(load(beside, seed=seed), text, beside, None))
    written = {html: lambda: page.standalone(documents, title=text[:80])}
    shown = documents if beside is not None else documents[0]
    written[output] = lambda: json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    for path, content in written.items():
        if path is not None:
            _write(path, content())
    if html is None and output is None:
        print("\n\n".join(map(_as_text, documents)))
    return documents


def _watched(translator: Translator, text: str, run_dir: str, decode: DecodeConfig | None) -> Document:
    plain = chosen = translator.checked(decode, has_lengths=False)
    if decode is None and isinstance(chosen, Refinement):
        chosen = dataclasses.replace(chosen, num_hypotheses=min(LENGTHS_SHOWN, translator.model.max_target_length))
    # Of a model that writes from left to right what is shown is an ordinary request.
    plain = plain if isinstance(plain, Refinement) else None
    name = as_path(run_dir).resolve().name
    return watch(translator, translator.tokenize(text), chosen, name=name, text=text, plain=plain)[1]


def _write(path: str, content: str) -> None:
    try:
        write_text(as_path(path), content)
    except OSError as error:
        kind = kind_of(error) or PadirError
        raise kind(f"{path}: cannot be written ({error.strerror}); choose a file that you can write to") from error
    print(f"written: {path}")


def _as_text(told: Document) -> str:
    """A document for a terminal: the best hypothesis, a line for each step."""
    best = told["hypotheses"][0]
    lines = [f"{told['model']['name']}: {best['text']}"]
    for number, step in enumerate(best.get("steps", []), 1):
        remasked = {one["position"] for one in step["remasked"]}
        pieces = (f"[{piece}]" if i in remasked else piece for i, piece in enumerate(step["write"]))
        lines.append(f"step {number}: {' '.join(pieces)}")
    if "stopped" in best:
        lines.append(f"stopped after {best['steps_run']}: {best['stopped']}; [remasked]")
    return "\n".join(lines)
