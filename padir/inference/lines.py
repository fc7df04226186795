"""Translation of a stream of lines, whether from a file, standard input or a shard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any

from padir.checks import finite_or_none
from padir.errors import PadirError
from padir.files.lines import MAX_LINE_BYTES, Line, Rejects, chunked
from padir.inference.translator import Translation, Translator
from padir.models.kinds import DecodeConfig

FORMATS = ("lines", "jsonl")

# The number of batches of lines that are read at a time and sorted by length, so that batches need little padding.
BATCHES_PER_READ = 16


@dataclass(frozen=True)
class Counts:
    """Counts of the lines of a job: read = translated + rejected.

    `unmet` of those that were translated do not obey the constraint; None without one.
    """

    read: int = 0
    translated: int = 0
    rejected: int = 0
    unmet: int | None = None

    def __add__(self, other: Counts) -> Counts:
        known = [each.unmet for each in (self, other) if each.unmet is not None]
        return Counts(
            self.read + other.read,
            self.translated + other.translated,
            self.rejected + other.rejected,
            sum(known) if known else None,
        )

    def __str__(self) -> str:
        lines = f"read {self.read} lines: {self.translated} translated, {self.rejected} rejected"
        return lines if self.unmet is None else f"{lines}; {self.unmet} do not meet the constraint"


@dataclass(frozen=True)
class LineTranslator:
    """Translates lines in batches, and writes the translations in the order of the input.

    Attributes:
      translator: the translator.
      decode: the decode configuration, already checked against the model.
      batch_size: the number of lines decoded at a time. 16 times as many are read and sorted by length.
      input_format: 'lines' for plain text, or 'jsonl' for one JSON object per line.
      input_field: the field of such an object that holds the text.
      output_format: 'lines' for plain text, with an empty line for a rejected input, or 'jsonl'. With 'jsonl' input,
        an output record holds the input object under 'input'.
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
        """Translates all lines in constant memory.

        Args:
          lines: the lines. None marks a pause of the input, at which the lines read so far are translated.
          out: where translations are written.
          rejects: where rejected lines are written.
          done: called with the counts of each group of lines that has been written.

        Returns:
          The counts of all lines.
        """
        nothing = Counts(unmet=None if self.translator.constraint is None else 0)
        total = nothing
        for chunk in chunked(lines, BATCHES_PER_READ * self.batch_size):
            rejected, unmet = 0, nothing.unmet
            for line, result in zip(chunk, self._translate(chunk), strict=True):
                if isinstance(result, Translation):
                    out.write(self._written(result, line))
                    unmet = None if unmet is None else unmet + (not result.constraint_met)
                else:
                    rejected += 1
                    rejects.write(line, result)
                    out.write("\n" if self.output_format == "lines" else "")
            out.flush()
            counts = Counts(len(chunk), len(chunk) - rejected, rejected, unmet)
            total += counts
            done(counts)
        return total

    def _translate(self, chunk: list[Line]) -> list[Translation | str]:
        """Returns for each line its `Translation`, or the reason why it is rejected."""
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
            raise PadirError(f"line of more than {MAX_LINE_BYTES} bytes; split it")
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
        return found

    def _written(self, translation: Translation, line: Line) -> str:
        if self.output_format == "lines":
            return translation.text + "\n"
        record: dict[str, Any] = {
            "file": line.file,
            "line": line.number,
            "text": translation.text,
            "score": finite_or_none(translation.score),
            "steps_run": translation.steps_run,
            "predicted_length": translation.predicted_length,
        }
        if len(translation.hypotheses) > 1:
            record["hypotheses"] = [
                {"text": text, "score": finite_or_none(score)} for text, score in translation.hypotheses
            ]
        if translation.rounds is not None:
            record["rounds"] = translation.rounds
        if translation.queries is not None:
            record |= {"failed": translation.failed, **vars(translation.queries)}
        if translation.constraint_met is not None:
            record["constraint_met"] = translation.constraint_met
        text = json.dumps(record, ensure_ascii=False)
        if self.input_format == "jsonl":
            # The input is copied as text, because parsing and writing it again could change numbers and escapes.
            text = f'{text[:-1]}, "input": {line.raw.decode("utf-8").strip()}}}'
        return text + "\n"
