"""Watching a translation: the document of a trace, and going on from a hypothesis that somebody has edited."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.autoregressive import START_ID
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import log_probability
from padir.errors import PadirError
from padir.inference.decoder import source_width
from padir.inference.document import Document, document, rounded
from padir.inference.program import Program
from padir.inference.translation import Translation
from padir.inference.translator import Translator
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import DecodingParams
from padir.models.kinds import DecodeConfig
from padir.models.padir import PadirModel
from padir.types import EOS_ID, PAD_ID, Array

# Hypotheses that are shown beside each other unless somebody asks for another number.
LENGTHS_SHOWN = 4
# How many lengths a document tells of.
_LENGTHS = 16
# What is read once more is read by so many rows at a time, of so many tokens if none is longer.
_ROWS, _ROOM = 16, 32


def traced(decode: DecodeConfig) -> DecodeConfig:
    """The configuration that decodes the same and keeps a trace, without the shortcuts that have none.

    Only a refinement has a trace; any other configuration is returned as it is.
    """
    if not isinstance(decode, Refinement):
        return decode
    return dataclasses.replace(
        decode,
        return_trace=True,
        likeliest_first=False,
        compact_rows=False,
        active_positions=None,
        # Each length is a program to compile, and what is watched is one sentence.
        target_buckets=decode.target_buckets if decode.t5x_compat else (_ROOM,),
    )


def trace_document(
    translation: Translation, translator: Translator, *, seconds: float | None = None, name: str | None = None
) -> Document:
    """Everything that the page shows of a translation; see `document` for its form.

    Args:
      translation: one of this translator's. A refinement needs a configuration of `traced`, or only its results are
        told. What its steps have read is read once more for the attention to the source (not with an order, nor with
        self-conditioning, unless the trace has it). Of an autoregressive model the best hypothesis is read once more,
        for its probabilities and attention.
      translator: what made it.
      seconds: how long the translation took, as the caller measured it.
      name: of the model.

    Returns:
      The document, ready for JSON.

    Raises:
      PadirError: no translator made the translation.
    """
    origin = translation.origin
    if origin is None:
        raise PadirError("trace_document: this translation has no origin; take one that a Translator returned")
    told = document(translation)
    model = translator.model
    kind = "padir" if isinstance(model, PadirModel) else "autoregressive"
    told["model"] = {"name": name, "kind": kind, "step": translator.step}
    told["timings"] = None if seconds is None else {"total_ms": _milliseconds(seconds)}
    if isinstance(model, PadirModel):
        if model.length_predictor != "oracle":
            told["lengths"] = _predicted_lengths(translator, origin.source)
        alone = isinstance(origin.decode, Refinement) and origin.decode.order is None and not model.self_conditioning
        if alone and translation.trace is not None and translation.trace.cross_attentions is None:
            for hypothesis, attention in zip(told["hypotheses"], _attention(translator, translation), strict=True):
                hypothesis["attention"] = attention
    elif origin.tokens:
        confidence, attention = _read_again(translator, origin.source, origin.tokens)
        told["hypotheses"][0] |= {"confidence": confidence, "attention": attention}
    return told


def watch(
    translator: Translator,
    source: Sequence[int],
    decode: DecodeConfig | None = None,
    *,
    name: str | None = None,
    text: str | None = None,
    plain: DecodeConfig | None = None,
) -> tuple[Translation, Document]:
    """Translates one source, and tells of it.

    It is decoded twice and the second time is told, so that no compilation is in it.

    Args:
      translator: any.
      source: token ids, ending in EOS.
      decode: how; the translator's default if None. It is changed as `traced` says.
      name: of the model.
      text: the source as it was written, which the document then tells: token ids do not say what UNK was.
      plain: how an ordinary request decodes. The `timings` then tell, as `served_ms`, how long the source takes so.
    """
    decode = traced(translator.checked(decode))

    def once(decode: DecodeConfig = decode) -> Translation:
        return translator.translate_ids([source], decode, batch_size=1)[0]

    translation, told = _timed(translator, once, name, text)
    if plain is not None:
        told["timings"]["served_ms"] = _milliseconds(_second(lambda: once(plain))[1])
    return translation, told


def watch_further(
    translator: Translator,
    text: str,
    tokens: Sequence[int | str | None],
    clamped: Sequence[bool],
    length: int | None = None,
    *,
    decode: Refinement | None = None,
    name: str | None = None,
) -> tuple[Translation, Document]:
    """`continue_from`, and tells of it; likewise."""
    arguments = text, tokens, clamped, length
    return _timed(translator, lambda: continue_from(translator, *arguments, decode=decode), name, text)


def _timed(
    translator: Translator, once: Callable[[], Translation], name: str | None, text: str | None
) -> tuple[Translation, Document]:
    translation, seconds = _second(once)
    told = trace_document(translation, translator, seconds=seconds, name=name)
    if text is not None:
        pieces = [*translator.vocabulary.pieces_as_written(text), *told["source"]["pieces"][-1:]]
        if len(pieces) == len(told["source"]["pieces"]):
            told["source"] = {"text": text, "pieces": pieces}
    return translation, told


def _second(once: Callable[[], Translation]) -> tuple[Translation, float]:
    """Translates twice; returns the second translation, which compiled nothing, and the seconds that it took."""
    once()
    began = time.perf_counter()
    return once(), time.perf_counter() - began


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)


def continue_from(
    translator: Translator,
    text: str,
    tokens: Sequence[int | str | None],
    clamped: Sequence[bool],
    length: int | None = None,
    *,
    decode: Refinement | None = None,
) -> Translation:
    """Goes on decoding from an edited hypothesis.

    Args:
      translator: of a parallel model.
      text: the source.
      tokens: the hypothesis, with or without EOS at its end: token ids, None where nothing is known, or a string that
        is put into pieces and may become several tokens.
      clamped: which of them no step may change, as many. What is not known is not clamped.
      length: how many tokens there shall be, EOS counted; the end is cut, or filled with what is not known. None takes
        the hypothesis as it is.
      decode: how to go on; the model's default if None. Its shortcuts are left out, and one hypothesis is decoded.

    Returns:
      The translation with its trace, and an origin that tells what was edited.

    Raises:
      PadirError: the model is not parallel or is under a constraint, a token is none of its pieces, `clamped` is not
        as long as `tokens`, or the length is impossible or would cut what is clamped.
    """
    decode = traced(translator.checked(decode))
    if not isinstance(decode, Refinement) or translator.constraint is not None:
        raise PadirError("continue_from: needs a refinement by a parallel model without a constraint")
    source = translator.tokenize(text)
    ids, fixed = _edited(translator, tokens, clamped, length)
    found = translator.continue_ids(source, ids, fixed, decode)
    translation = translator.translation(found, 0, decode, source)
    origin = dataclasses.replace(translation.origin, clamped=tuple(fixed), edited=tuple(ids))
    return dataclasses.replace(translation, origin=origin)


def _edited(
    translator: Translator, tokens: Sequence[int | str | None], clamped: Sequence[bool], length: int | None
) -> tuple[list[int], list[bool]]:
    """The token ids of an edited hypothesis, EOS at their end, and which are clamped; see `continue_from`."""
    if len(tokens) != len(clamped):
        raise PadirError(f"continue_from: {len(tokens)} tokens but {len(clamped)} marks of what is clamped")
    mask, longest = translator.model.ids.mask_id, translator.model.max_target_length
    found: list[tuple[int, bool]] = []
    for token, fixed in zip(tokens, clamped, strict=True):
        found += [(each, bool(fixed) and each != mask) for each in _ids(translator, token)]
    if found and found[-1][0] == EOS_ID:
        found.pop()
    if any(token == EOS_ID for token, _ in found):
        raise PadirError("continue_from: EOS may only be the last token; give a smaller length to end earlier")
    if length is not None:
        if not 1 <= length <= longest:
            raise PadirError(f"continue_from: length {length} is not from 1 to {longest}")
        if any(fixed for _, fixed in found[length - 1 :]):
            raise PadirError(f"continue_from: a clamped token lies beyond the length {length}; release it first")
        found = found[: length - 1] + [(mask, False)] * (length - 1 - len(found))
    if len(found) + 1 > longest:
        raise PadirError(f"continue_from: {len(found) + 1} tokens are more than the {longest} that the model allows")
    found.append((EOS_ID, False))
    return [token for token, _ in found], [fixed for _, fixed in found]


def _ids(translator: Translator, token: int | str | None) -> list[int]:
    """The token ids of one item of an edited hypothesis."""
    mask, pieces = translator.model.ids.mask_id, translator.model.ids.num_pieces
    if token is None:
        return [mask]
    if isinstance(token, str):
        ids = translator.vocabulary.encode(token)
        if not ids:
            raise PadirError("continue_from: an edited token is empty; give None for one that is not known")
        return ids
    if isinstance(token, bool) or not isinstance(token, int) or not (0 < token < pieces or token == mask):
        raise PadirError(f"continue_from: {token!r} is no token of this vocabulary, which has {pieces} pieces")
    return [token]


def _predicted_lengths(translator: Translator, source: Sequence[int]) -> list[Document]:
    """The likeliest lengths and their probabilities, likeliest first."""
    log_probs = np.asarray(_length_program(translator.model)(translator.decoding_params, _padded(translator, source)))
    likeliest = np.argsort(-log_probs[0], kind="stable")[:_LENGTHS]
    probabilities = rounded(np.exp(log_probs[0][likeliest]))
    both = zip(likeliest.tolist(), probabilities, strict=True)
    return [{"length": index + 1, "probability": probability} for index, probability in both]


def _attention(translator: Translator, translation: Translation) -> list[list]:
    """The mean attention to the source in the steps of each hypothesis: [steps, L, P] each."""
    trace, source = translation.trace, translation.origin.source
    steps = translation.origin.steps_run
    read = [trace.inputs[step, row] for row, count in enumerate(steps) for step in range(count)]
    lengths = (trace.inputs[0] != PAD_ID).sum(-1)
    longest = translator.model.max_target_length
    room = min(_ROOM, longest) if lengths.max() <= _ROOM else longest
    batch = np.zeros((-(-len(read) // _ROWS) * _ROWS, room), np.int32)
    batch[: len(read)] = np.array(read).reshape(len(read), longest)[:, :room]
    program, padded = _attention_program(translator.model), _padded(translator, source)
    chunks = (program(translator.decoding_params, padded, chunk) for chunk in batch.reshape(-1, _ROWS, room))
    weights = iter(np.concatenate([np.zeros((0, room, padded.shape[1])), *map(np.asarray, chunks)]))
    return [
        [rounded(next(weights)[:length, : len(source)]) for _ in range(count)]
        for count, length in zip(steps, lengths, strict=True)
    ]


def _read_again(translator: Translator, source: Sequence[int], tokens: Sequence[int]) -> tuple[list, list]:
    """Probability of each token [L] and its mean attention to the source [L, P], given the tokens on its left."""
    room = 1 << max(len(tokens) - 1, 7).bit_length()
    target = np.zeros((1, room), np.int32)
    target[0, : len(tokens)] = tokens
    program = _reading_program(translator.model)
    log_probs, attention = jax.device_get(program(translator.decoding_params, _padded(translator, source), target))
    return rounded(np.exp(log_probs[0, : len(tokens)])), rounded(attention[0, : len(tokens), : len(source)])


def _padded(translator: Translator, source: Sequence[int]) -> np.ndarray:
    """A batch of one source, [1, Ls] int32."""
    batch = np.zeros((1, source_width(translator.model, len(source))), np.int32)
    batch[0, : len(source)] = source
    return batch


@functools.cache
def _length_program(model: PadirModel) -> Program:
    """(parameters, source [B, Ls]) → log-probability of each length [B, max_target_length]."""
    return Program(lambda params, source: jax.nn.log_softmax(model.encode(params, source)[1]))


@functools.cache
def _attention_program(model: PadirModel) -> Program:
    """(parameters, source [1, Ls], what is read [N, L]) → mean attention [N, L, Ls]."""

    def run(params: DecodingParams, source: Array, tokens: Array) -> Array:
        module = model.module(params)
        sources = module.network.plan_of_sources(model.encode(params, source)[0], source)
        plan = module.network.plan_of_targets(sources, tokens, module.network.of_length(tokens.shape[1]))
        return module.network.decode(tokens, plan).cross_attentions.mean(axis=(1, 2))

    return Program(run)


@functools.cache
def _reading_program(model: AutoregressiveModel) -> Program:
    """(parameters, source [B, Ls], tokens [B, L]) → (log-probabilities [B, L], attention [B, L, Ls])."""

    def run(params: DecodingParams, source: Array, tokens: Array) -> tuple[Array, Array]:
        network = model.module(params).network
        plan = network.plan(model.encode(network, source), source, tokens.shape[1])
        inputs = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
        output = network.decode(inputs, plan)
        log_probs = log_probability(network.logits(output.hidden), tokens, model.ids)
        return jnp.where(tokens == PAD_ID, 0.0, log_probs), output.cross_attentions.mean(axis=(1, 2))

    return Program(run)
