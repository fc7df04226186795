"""The Python interface for translation: `load` opens a trained model, and `Translator` translates text."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from padir import checks
from padir.data.constraints import Constraint
from padir.data.vocabulary import Vocabulary
from padir.decoding import generation
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.inference.constraint import SourceConstraint
from padir.inference.decoder import Decoder, own_mesh
from padir.inference.origin import Origin
from padir.inference.translation import Translation
from padir.models.autoregressive import AutoregressiveModel
from padir.models.guided import Judge
from padir.models.helper import Helper
from padir.models.kinds import DecodeConfig, Model
from padir.models.rescoring import Rescorer
from padir.models.verification import Verifier
from padir.nn import fastest_type
from padir.progress import progress
from padir.runs.convert import needed_vocabulary, open_model
from padir.runs.saved_verifier import load_verifier
from padir.types import EOS_ID, PyTree

# Up to so many batches, `translate` shows no bar.
_BATCHES_WITHOUT_BAR = 16
# Batches that `stream` reads ahead.
_WINDOW = 16


class Translator(Decoder):
    """A `Decoder` with its vocabulary, ready to translate text; made by `padir.load`.

    Several threads may translate with it. It is a context manager, too, which gives the model's memory back at its end.
    """

    def __init__(
        self,
        model: Model,
        params: PyTree,
        vocabulary: Vocabulary,
        *,
        step: int,
        seed: int = 0,
        helper: Helper | None = None,
        judge: Judge | None = None,
        constraint: Constraint | None = None,
        compute_type: str | None = None,
    ):
        """See `Decoder`.

        `vocabulary` is that of the training data; `step` is the training step of `params`. Every translation obeys the
        `constraint`.
        """
        super().__init__(model, params, seed=seed, helper=helper, judge=judge, compute_type=compute_type)
        self.vocabulary = vocabulary
        self.step = step
        self.constraint = None if constraint is None else SourceConstraint(constraint, vocabulary, model)

    def checked(self, decode: DecodeConfig | None, *, has_lengths: bool = True) -> DecodeConfig:
        """See `Decoder.checked`; it must go with the constraint, too, if there is one."""
        decode = super().checked(decode, has_lengths=has_lengths)
        if self.constraint is not None:
            self.constraint.check(decode)
        return decode

    def is_blank(self, text: str) -> bool:
        """Whether a text has nothing to translate: white space, or characters without a piece, such as a lone BOM."""
        return not (text.strip() and self.vocabulary.encode(text))

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a source text, ending in EOS.

        Raises:
          PadirError: the text is empty, longer than the model allows, or holds what is no character.
        """
        checks.characters(text)
        ids = [*(self.vocabulary.encode(text) if text.strip() else []), EOS_ID]
        if len(ids) == 1:  # See `is_blank`, which would encode the text once more.
            raise PadirError("empty text: there is nothing to translate")
        if len(ids) > self.longest_source:
            raise PadirError(
                f"source of {len(ids)} tokens is longer than the {self.longest_source} that the model allows; split it"
            )
        return ids

    def translate(
        self, texts: Sequence[str], decode: DecodeConfig | None = None, *, batch_size: int = 32
    ) -> list[Translation]:
        """Translates texts and returns the translations in the same order.

        A translation does not depend on the batch size or on the other texts of its batch.

        Args:
          texts: the source sentences.
          decode: a configuration for this kind of model (`padir.models.kinds.DECODE_CONFIGS`); `default_decode` if
            None.
          batch_size: the number of texts decoded at a time.

        Raises:
          PadirError: a text is empty or too long (the message gives its position), or `decode` does not suit the model.
        """
        if isinstance(texts, str):
            raise PadirError("translate takes a list of texts, not one text: use translate([text])")
        sources = [self._numbered(index, text) for index, text in enumerate(texts)]
        if len(sources) <= _BATCHES_WITHOUT_BAR * batch_size:
            return self.translate_ids(sources, decode, batch_size=batch_size)  # Even a silent bar takes its time.
        with progress(label="translate", unit="texts", total=len(sources)) as bar:
            return self.translate_ids(sources, decode, batch_size=batch_size, done=bar.update)

    def stream(
        self, texts: Iterable[str], decode: DecodeConfig | None = None, *, batch_size: int = 32
    ) -> Iterator[tuple[int, Translation]]:
        """Translates texts and yields each translation, with the position of its text, as soon as its batch is done.

        The texts of 16 batches are read at a time and sorted by length; shorter ones come first. Nothing is translated
        before the first translation is asked for, and texts may go on without end.

        Args:
          texts: the source sentences.
          decode: as for `translate`.
          batch_size: the number of texts decoded at a time.

        Yields:
          (position of the text, counted from 0; its translation).

        Raises:
          PadirError: as for `translate`; what comes before the 16 batches of a wrong text has been yielded by then.
        """
        if isinstance(texts, str):
            raise PadirError("stream takes several texts, not one text: use stream([text])")
        decode = self.checked(decode, has_lengths=False)
        check_batch_size(batch_size)
        numbered = enumerate(texts)
        while window := list(itertools.islice(numbered, _WINDOW * batch_size)):
            sources = [self._numbered(index, text) for index, text in window]
            for batch in self._batches(sources, decode, batch_size, None):
                for row, translation in batch:
                    yield window[row][0], translation

    def _numbered(self, index: int, text: str) -> list[int]:
        try:
            return self.tokenize(text)
        except PadirError as error:
            raise PadirError(f"text {index + 1}: {error}") from None

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig | None = None,
        *,
        batch_size: int = 32,
        lengths: Sequence[int] | None = None,
        done: Callable[[int], object] = lambda count: None,
    ) -> list[Translation]:
        """Translates sources given as token ids and returns the translations in the same order.

        Args:
          sources: the token ids of each source, ending in EOS.
          decode: the decode configuration; `default_decode` if None.
          batch_size: the number of sources decoded at a time; fewer where the tables of a constraint are large.
          lengths: the target lengths, EOS included. A parallel model uses them in place of predicted lengths; the
            length predictor 'oracle' requires them. An autoregressive model writes exactly this many tokens, none of
            which is EOS.
          done: called with the size of each finished batch.

        Raises:
          PadirError: a source is too long, or `decode` does not suit the model.
        """
        decode = self.checked(decode, has_lengths=lengths is not None)
        check_batch_size(batch_size)
        results: list[Translation | None] = [None] * len(sources)
        for batch in self._batches(sources, decode, batch_size, lengths):
            for row, translation in batch:
                results[row] = translation
            done(len(batch))
        return results

    def _batches(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        batch_size: int,
        lengths: Sequence[int] | None,
    ) -> Iterator[list[tuple[int, Translation]]]:
        """Yields (index of the source, translation) of each batch as it is done; see `translate_ids`."""
        tables, room = None, (0, 0, 0)
        if self.constraint is not None and sources:
            tables = self.constraint.tables(sources, decode)
            room, batch_size = self.constraint.room(tables), min(batch_size, self.constraint.most_rows(tables))
        # Sources of similar length are decoded together, so that batches need little padding.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            given = None if lengths is None else [lengths[row] for row in rows]
            automaton = None
            if tables is not None:
                of_rows = [tables[row] for row in rows]
                automaton = self.constraint.automaton(of_rows, self.padded_rows(len(rows)), room)
            hypotheses = self.decode_ids([sources[row] for row in rows], decode, given, automaton)
            yield [
                (row, self.translation(hypotheses, position, decode, sources[row])) for position, row in enumerate(rows)
            ]

    def translation(self, hypotheses: Hypotheses, row: int, decode: DecodeConfig, source: Sequence[int]) -> Translation:
        """The text of one row of what was decoded; `decode` and `source` are what `decode_ids` was given for it."""
        ids = hypotheses.tokens[row].tolist()
        scores = hypotheses.scores[row].tolist()
        every = tuple((self.vocabulary.decode(tokens), score) for tokens, score in zip(ids, scores, strict=True))
        text, score = every[0]
        steps, length = int(hypotheses.steps_run[row, 0]), int(hypotheses.predicted_lengths[row, 0])
        # A parallel model chooses the length in advance, so it cannot run into a limit.
        failed = hypotheses.failed is not None and bool(hypotheses.failed[row, 0])
        limited = not (failed or isinstance(decode, Refinement))
        each_cut_off = tuple(limited and EOS_ID not in tokens for tokens in ids)
        trace = jax.tree.map(lambda field: field[:, row], hypotheses.trace)
        rounds = None if hypotheses.rounds is None else int(hypotheses.rounds[row, 0])
        # Whatever the samples of a text cost, it is paid for the text.
        queries = jax.tree.map(lambda field: int(field[row].sum()), hypotheses.queries)
        met = None if self.constraint is None else not failed and self.constraint.met(source, text)
        tokens = [token for token in ids[0] if token]
        origin = Origin(self.vocabulary, decode, list(source), tokens, hypotheses.steps_run[row].tolist())
        return Translation(
            text,
            score,
            steps,
            length,
            hypotheses=every,
            cut_off=each_cut_off[0],
            hypotheses_cut_off=each_cut_off,
            rounds=rounds,
            trace=trace,
            queries=queries,
            failed=failed,
            constraint_met=met,
            origin=origin,
        )


def load(
    path: str | os.PathLike,
    *,
    step: int | None = None,
    seed: int = 0,
    vocabulary: str | os.PathLike | None = None,
    rescore_with: str | os.PathLike | None = None,
    verify_with: str | os.PathLike | None = None,
    verifier: str | os.PathLike | generation.Verifier | None = None,
    constraint: str | os.PathLike | Mapping[str, Any] | None = None,
    compute_type: str | None = None,
) -> Translator:
    """Opens a run directory or an imported checkpoint; see `padir.load`.

    Args:
      path: a run directory of `padir train`, a Hugging Face folder or a T5X checkpoint.
      step: the checkpoint of a run directory to open; the newest by default.
      seed: the seed of random decoding.
      vocabulary: the SentencePiece model that the model was trained with. Needed only if `path` contains none.
      rescore_with: the path of an autoregressive model with the same vocabulary, which ranks the hypotheses of a
        parallel model.
      verify_with: the path of an autoregressive model with the same vocabulary. The parallel model drafts, and by
        default the output is that of greedy decoding by this model (`Verified`).
      verifier: the folder of a verifier that `padir verifier` has trained for this model, under which it generates
        (`Guided`); or any other `Verifier` that is a pytree, such as a `Listed`.
      constraint: the JSON file of a constraint, or a dictionary of the same form, that every translation must obey; see
        `padir.data.constraints`.
      compute_type: 'bfloat16' or 'int8' to round the factors of products with weights, which is faster on some devices
        and changes some translations. 'auto' takes the faster of them, or neither, by the devices at hand, which may
        take a second to measure; `Translator.compute_type` says which. None computes as in training.

    Raises:
      PadirError: a path holds no model, vocabularies differ or are missing, or an option does not suit the model.
    """
    compute_type = fastest_type.resolved("compute_type", compute_type)
    if rescore_with is not None and verify_with is not None:
        raise PadirError("rescore_with: what is verified has one hypothesis, which needs no ranking; leave it out")
    given = None if vocabulary is None else Vocabulary.load(vocabulary)
    mesh = own_mesh()
    opened = open_model(path, mesh, step=step, vocabulary=given)
    own = needed_vocabulary(opened, path)
    helper = None
    if rescore_with is not None:
        helper = _open_helper(Rescorer, rescore_with, mesh, own)
    elif verify_with is not None:
        helper = _open_helper(Verifier, verify_with, mesh, own)
    judge = None
    if verifier is not None:
        is_folder = isinstance(verifier, str | os.PathLike)
        judge = Judge(*load_verifier(verifier, opened.params)) if is_folder else Judge(verifier)
    options = {"step": opened.step, "seed": seed, "helper": helper, "judge": judge, "compute_type": compute_type}
    options["constraint"] = None if constraint is None else Constraint.read(constraint)
    return Translator(opened.model, opened.params, own, **options)


def _open_helper(kind: type[Helper], path: str | os.PathLike, mesh: Mesh, vocabulary: Vocabulary) -> Helper:
    """The model that an option names, as a helper of this kind; errors name the option."""
    try:
        opened = open_model(path, mesh, vocabulary=vocabulary)
    except PadirError as error:
        raise type(error)(f"{kind.option}: {error}") from error
    if not isinstance(opened.model, AutoregressiveModel):
        found = type(opened.model).__name__
        raise PadirError(f"{kind.option}: {path}: {kind.task} needs an autoregressive model; this is a {found}")
    return kind(opened.model, opened.params)


def check_batch_size(batch_size: int) -> None:
    """Raises PadirError unless `batch_size` is at least 1."""
    if batch_size < 1:
        raise PadirError(f"batch_size: {batch_size} is not at least 1")
