"""The items of one request, and the answer that is put together from what became of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from padir.inference.translation import Translation
from padir.serving.batcher import Answer, Item
from padir.serving.limits import Limits, RequestRefused
from padir.serving.models import ServedModel
from padir.serving.queries import Edit, Query
from padir.serving.sentences import split

# (model, decode) of items that share batches, or a call that takes the device for itself.
Kind = tuple[ServedModel, Any] | Callable[[], Any]


def decode_batch(kind: Kind, contents: list[Any]) -> Sequence[Any]:
    """What `Batcher` does with a batch: translates the sources, or makes the one call."""
    if callable(kind):
        return [kind()]
    model, decode = kind
    return model.translate(contents, decode)


class Work:
    """A query as items, one for each sentence that is decoded by itself.

    Attributes:
      model: who translates it.
      items: in the order of the texts.
    """

    def __init__(self, model: ServedModel, query: Query, limits: Limits, deadline: float):
        """Puts the texts into tokens.

        Raises:
          RequestRefused: a text is too long (413), or the model cannot do what is asked (400).
        """
        self.model = model
        self._query = query
        self._deadline = deadline
        self._decode = model.decode_for(query)
        self._parts = [self._parts_of(text, f"text {index}") for index, text in enumerate(query.texts, 1)]
        self.items = [item for parts in self._parts for item, _ in parts if item is not None]
        if len(self.items) > limits.max_items:
            raise RequestRefused(413, f"q: {len(self.items)} sentences are more than {limits.max_items} of one request")

    def _parts_of(self, text: str, what: str) -> list[tuple[Item | None, str]]:
        """A text as parts: (what is translated, the text that follows it unchanged)."""
        blank = self.model.translator.is_blank
        if blank(text):
            return [(None, text)]
        if self._query.split and len(self.model.translator.vocabulary.encode(text)) >= self.model.longest_source:
            if self._query.trace:
                raise RequestRefused(400, f"trace: {what} would be split, and a trace is of one decode")
            return [
                (None if blank(sentence) else self._item(sentence, f"{what}, sentence {number}"), after)
                for number, (sentence, after) in enumerate(split(text), 1)
            ]
        return [(self._item(text, what, may_split=not (self._query.split or self._query.trace)), "")]

    def _item(self, text: str, what: str, *, may_split: bool = False) -> Item:
        ids = self.model.tokenize(text, what, may_split=may_split)
        model, decode = self.model, self._decode
        kind = (lambda: model.watch(ids, decode, text)) if self._query.trace else (model, decode)
        return Item(kind, model.width(ids), ids, self, self._deadline)

    def answer(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Returns the body of the response.

        Args:
          answers: one for each of `items`, in order.

        Returns:
          {'translatedText': text, 'model': name, 'stepsRun': passes, 'milliseconds': of the decode}, with
          'alternatives' and 'trace' if they were asked for; for a list of texts, a list of each but the model.
        """
        found = dict(zip(map(id, self.items), answers, strict=True))
        texts = [self._text(parts, found) for parts in self._parts]
        names = list(texts[0])
        each = texts if self._query.is_list else texts[0]
        body = {name: [text[name] for text in each] if self._query.is_list else each[name] for name in names}
        return {**body, "model": self.model.name}

    def _text(self, parts: Sequence[tuple[Item | None, str]], found: dict[int, Answer]) -> dict[str, Any]:
        translations, documents, text = [], [], ""
        for item, after in parts:
            if item is not None:
                translation, document = _both(found[id(item)].value)
                translations.append(translation)
                documents.append(document)
                text += translation.text
            text += after
        milliseconds = 1e3 * max((found[id(item)].seconds for item, _ in parts if item is not None), default=0.0)
        told = {
            "translatedText": text,
            "stepsRun": max((translation.steps_run for translation in translations), default=0),
            "milliseconds": round(milliseconds, 3),
        }
        if self._query.alternatives:
            # Those of several sentences would have to be combined.
            told["alternatives"] = self._alternatives(translations[0]) if len(parts) == 1 and translations else []
        if self._query.trace:
            told["trace"] = documents[0] if documents else None
        return told

    def _alternatives(self, translation: Translation) -> list[str]:
        # A beam that found fewer outputs is filled up with empty ones, whose score is -inf.
        found = [text for text, score in translation.hypotheses if score > -math.inf]
        others = dict.fromkeys(text for text in found if text != translation.text)
        return list(others)[: self._query.alternatives]

    def steps(self, answers: Sequence[Answer]) -> list[int]:
        """Returns the decoder passes of each item."""
        return [_both(answer.value)[0].steps_run for answer in answers]


class Alone:
    """A request to go on from an edited hypothesis: one item that takes the device for itself.

    Attributes:
      model: who goes on.
      items: the one item.
    """

    def __init__(self, model: ServedModel, edit: Edit, deadline: float):
        """See `ServedModel.go_on`."""
        decode = model.decode_for(Query((edit.text,), steps=edit.steps))
        self.model = model
        self.items = [Item(lambda: model.go_on(edit, decode), 0, None, self, deadline)]

    def answer(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Returns the body of the response; the same fields as for a traced text."""
        translation, document = answers[0].value
        return {
            "translatedText": translation.text,
            "stepsRun": translation.steps_run,
            "milliseconds": round(1e3 * answers[0].seconds, 3),
            "trace": document,
            "model": self.model.name,
        }

    def steps(self, answers: Sequence[Answer]) -> list[int]:
        """Returns the decoder passes, in a list."""
        return [answers[0].value[0].steps_run]


def _both(value: Translation | tuple[Translation, dict[str, Any]]) -> tuple[Translation, dict[str, Any] | None]:
    return value if isinstance(value, tuple) else (value, None)
