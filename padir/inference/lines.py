"""Translating a stream of lines: what one file, standard input and a shard have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any

from padir.errors import PadirError
from padir.files.lines import MAX_LINE_BYTES, Line, Rejects, chunked
from padir.inference.translator import Translation, Translator
from padir.models.kinds import DecodeConfig

FORMATS = ("lines", "jsonl")

# Lines are read so many batches at a time, so that sorting them by length has something to sort.
BATCHES_PER_READ = 16


@dataclass(frozen=True)
class Counts:
    """Lines of a job; read = translated + rejected."""

    read: int = 0
    translated: int = 0
    rejected: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.read + other.read, self.translated + other.translated, self.rejected + other.rejected)

    def __str__(self) -> str:
        return f"read {self.read} lines: {self.translated} translated, {self.rejected} rejected"


@dataclass(frozen=True)
class LineTranslator:
    """Translates lines, batch by batch, and writes them in the order in which they came.

    Attributes:
      translator: with its model.
      decode: how; checked.
      batch_size: lines decoded at a time. 16 times as many are read and sorted by length.
      input_format: 'lines', or 'jsonl' for a JSON object a line.
      input_field: where such an object has the text.
      output_format: 'lines' (the text; an empty line for one that is rejected) or 'jsonl', where the record of an
        input in JSON stands under 'input'.
    """

    translator: Translator
    decode: DecodeConfig
    batch_size: int
    input_format: str = "lines"
    input_field: str = "text"
    output_format: str = "lines"

    def translate(
        self,
        lines: Iterable[Line | None],
        out: IO[str],
        rejects: Rejects,
        done: Callable[[Counts], object] = lambda counts: None,
    ) -> Counts:
        """Translates every line, in constant memory; tells `done` the counts of every group of lines written."""
        total = Counts()
        for chunk in chunked(lines, BATCHES_PER_READ * self.batch_size):
            rejected = 0
            for line, result in zip(chunk, self._translate(chunk), strict=True):
                if isinstance(result, Translation):
                    out.write(self._written(result, line))
                else:
                    rejected += 1
                    rejects.write(line, result)
                    out.write("\n" if self.output_format == "lines" else "")
            out.flush()
            counts = Counts(len(chunk), len(chunk) - rejected, rejected)
            total += counts
            done(counts)
        return total

    def _translate(self, chunk: list[Line]) -> list[Translation | str]:
        """A `Translation` per line, or why it is rejected."""
        results: list[Translation | str] = []
        sources = []
        for line in chunk:
            try:
                sources.append(self.translator.tokenize(self._text(line)))
                results.append("")
            except UnicodeDecodeError as error:
                results.append(f"invalid UTF-8 at byte {error.start + 1}")
            except PadirError as error:
                results.append(str(error))
        translations = iter(self.translator.translate_ids(sources, self.decode, batch_size=self.batch_size))
        return [result or next(translations) for result in results]

    def _text(self, line: Line) -> str:
        if len(line.raw) > MAX_LINE_BYTES:
            raise PadirError(f"line of more than {MAX_LINE_BYTES} bytes: split it")
        text = line.raw.decode("utf-8")
        if self.input_format == "lines":
            return text
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PadirError(f"not JSON: {error}") from error
        found = record.get(self.input_field) if isinstance(record, dict) else None
        if not isinstance(found, str):
            raise PadirError(f"no text field {self.input_field!r} in this JSON line")
        if any("\ud800" <= character <= "\udfff" for character in found):
            raise PadirError(f"field {self.input_field!r} has half of a surrogate pair, which is no character")
        return found

    def _written(self, translation: Translation, line: Line) -> str:
        if self.output_format == "lines":
            return translation.text + "\n"
        record: dict[str, Any] = {
            "file": line.file,
            "line": line.number,
            "text": translation.text,
            "score": translation.score,
            "steps_run": translation.steps_run,
            "predicted_length": translation.predicted_length,
        }
        text = json.dumps(record, ensure_ascii=False)
        if self.input_format == "jsonl":
            # As it stands: read and written anew, numbers and odd characters would not all stay what they are.
            text = f'{text[:-1]}, "input": {line.raw.decode("utf-8").strip()}}}'
        return text + "\n"
