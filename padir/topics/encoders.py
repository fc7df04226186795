"""The encoder of a run as arrays: embeddings, and attention on sentences, for the statistics by topic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from padir.errors import PadirError
from padir.files.lines import lines_of_all, resolved_inputs
from padir.inference.decoder import source_width
from padir.inference.translator import Translator
from padir.models.kinds import Model
from padir.nn.length import prepend_length_token
from padir.topics.block_statistics import Sentence
from padir.types import Array, PyTree

_ROWS = 16


def embedding_of(translator: Translator) -> np.ndarray:
    """The input embeddings: [rows of the table, d] float32, the vocabulary's pieces first."""
    return np.asarray(translator.params["network"]["token_embedder"]["embedding"], np.float32)


def sentences_of(
    translator: Translator, inputs: Sequence[str], num_examples: int | None
) -> tuple[list[Sentence], list[str]]:
    """The encoder's self-attention on sentences.

    Args:
      translator: the model.
      inputs: text files of one sentence a line.
      num_examples: number of sentences, from the first one on; None takes all.

    Returns:
      Of each sentence the tokens [N] that the encoder reads, and weights [layers, H, N, N] float32, queries before
      keys. The [LENGTH] token, which some models read first, and EOS are among the tokens. Then why lines were left
      out: those that are empty, no UTF-8 or too long for the model.

    Raises:
      PadirError: an input cannot be read, or no sentence is left.
    """
    sources, left_out = _read(translator, inputs, num_examples)
    if not sources:
        raise PadirError(f"analyze_topics.inputs: {', '.join(inputs)}: no sentence to read")
    program = _program(translator.model)
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    found: list[Sentence | None] = [None] * len(sources)
    prefix = translator.model.source_prefix
    for start in range(0, len(order), _ROWS):
        chosen = order[start : start + _ROWS]
        width = source_width(translator.model, max(len(sources[index]) for index in chosen))
        batch = np.zeros((_ROWS, width), np.int32)
        for row, index in enumerate(chosen):
            batch[row, : len(sources[index])] = sources[index]
        tokens, weights = map(np.asarray, program(translator.params, batch))
        for row, index in enumerate(chosen):
            length = len(sources[index]) + prefix
            # A copy, because a view would keep the whole batch in memory.
            found[index] = tokens[row, :length], weights[row, :, :, :length, :length].copy()
    return found, left_out


def _read(translator: Translator, inputs: Sequence[str], num_examples: int | None) -> tuple[list[list[int]], list[str]]:
    """The token ids of the sentences, and why other lines were left out."""
    sources: list[list[int]] = []
    left_out: list[str] = []
    for line in lines_of_all(resolved_inputs(inputs)):
        if len(sources) == num_examples:
            break
        if line is None:
            continue
        try:
            sources.append(translator.tokenize(line.raw.decode("utf-8")))
        except (PadirError, UnicodeDecodeError) as error:
            left_out.append(f"{line.file}:{line.number}: {error}")
    return sources, left_out


@functools.cache
def _program(model: Model) -> Callable[[PyTree, Array], tuple[Array, Array]]:
    """(parameters, source [B, Ls]) → (tokens that the encoder reads [B, N], weights [B, layers, H, N, N]), jitted."""

    @jax.jit
    def run(params: PyTree, source: Array) -> tuple[Array, Array]:
        tokens = prepend_length_token(source, model.ids.length_id) if model.source_prefix else source
        return tokens, model.module(params).network.encoder_attentions(tokens)

    return run
