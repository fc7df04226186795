"""A model's own translations, their first errors, and the hidden states of prefixes of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir.data.records import Example
from padir.data.vocabulary import Vocabulary
from padir.decoding.autoregressive import START_ID
from padir.decoding.guided import Guided
from padir.inference.decoder import source_width
from padir.inference.translator import Translator
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import decoding_model
from padir.models.prefixes import features_of
from padir.progress import progress
from padir.types import EOS_ID, PAD_ID, Array, PyTree
from padir.verifier.first_errors import balanced, judged

# A source text → all of its valid translations.
ValidOutputs = Callable[[str], Collection[str]]


class Collected(NamedTuple):
    """Labelled features, and what they come from.

    Attributes:
      features: [n, E] float32, of prefixes.
      labels: [n] bool, whether the prefix is fine.
      groups: [n] int, index of the source.
      counts: numbers of sources, samples, valid samples, samples with an error, and prefixes.
    """

    features: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    counts: dict[str, int]


def token_sequences(texts: Collection[str], vocabulary: Vocabulary) -> list[list[int]]:
    """Texts as the model writes them, in one order whatever the collection: token ids, EOS last."""
    return [[*ids, EOS_ID] for ids in vocabulary.encode_batch(sorted(texts))]


def padded_lists(lists: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """The outputs of each row as one array, as `Listed` takes them: [B, M, L] int32."""
    count = max(map(len, lists), default=0)
    longest = max((len(output) for outputs in lists for output in outputs), default=1)
    array = np.full((len(lists), max(count, 1), longest), PAD_ID, np.int32)
    for row, outputs in enumerate(lists):
        for place, output in enumerate(outputs):
            array[row, place, : len(output)] = output
    return array


def sampled(
    translator: Translator, sources: Sequence[Sequence[int]], decode: Guided, batch_size: int
) -> list[list[list[int]]]:
    """The samples of each source, token ids up to EOS if there is one."""
    found: list[list[list[int]]] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    with progress(label="sample", unit="sentences", total=len(sources)) as bar:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            tokens = translator.decode_ids([sources[row] for row in rows], decode).tokens
            for row, samples in zip(rows, tokens, strict=False):
                found[row] = [sample[sample != PAD_ID].tolist() for sample in samples]
            bar.update(len(rows))
    return found


def collect(
    translator: Translator,
    examples: Sequence[Example],
    valid_outputs: ValidOutputs,
    decode: Guided,
    *,
    batch_size: int,
    seed: int,
    layer: int | None = None,
) -> Collected:
    """Samples translations and chooses prefixes: those that end in a first error, and as many fine ones as long.

    Args:
      translator: the generator; its samples are drawn under its own judge.
      examples: what to translate; their references are not used.
      valid_outputs: all that is right.
      decode: how samples are drawn, and how many of each source.
      batch_size: sources sampled at a time.
      seed: of the choice of prefixes.
      layer: the decoder layer whose output the features are; see `prefixes.features_of`.
    """
    sources = [list(map(int, example.source_ids)) for example in examples]
    outputs, groups, verdicts = [], [], []
    for group, samples in enumerate(sampled(translator, sources, decode, batch_size)):
        valid = token_sequences(valid_outputs(examples[group].source_text), translator.vocabulary)
        outputs += samples
        groups += [group] * len(samples)
        verdicts += [judged(sample, valid) for sample in samples]
    chosen = balanced(outputs, groups, verdicts, seed)
    groups_of = [groups[prefix.sample] for prefix in chosen]
    prefixes = [outputs[prefix.sample][: prefix.length] for prefix in chosen]
    counts = {
        "sources": len(sources),
        "samples": len(outputs),
        "valid_samples": sum(verdict.is_valid for verdict in verdicts),
        "samples_with_an_error": sum(verdict.wrong > 0 for verdict in verdicts),
        "prefixes": len(chosen),
    }
    features = prefix_features(translator, [sources[group] for group in groups_of], prefixes, batch_size, layer)
    return Collected(features, np.array([prefix.is_fine for prefix in chosen], bool), np.array(groups_of, int), counts)


def prefix_features(
    translator: Translator,
    sources: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]],
    batch_size: int,
    layer: int | None = None,
) -> np.ndarray:
    """What a verifier is given of prefixes: the decoder's hidden state at the last token.

    Args:
      translator: the generator.
      sources, prefixes: token ids, n of each.
      batch_size: prefixes at a time.
      layer: the decoder layer whose output it is; None is the last one's, after the decoder's norm.

    Returns:
      [n, E] float32, those of `prefix_steps`.
    """
    decode = Guided()
    model, params = decoding_model(translator.model, decode), translator.inputs(decode)[0]
    width = source_width(model, max(map(len, sources), default=1))
    room = max(map(len, prefixes), default=1)
    found = np.zeros((len(prefixes), model.network.embed_dim), np.float32)
    for start in range(0, len(prefixes), batch_size):
        rows = slice(start, start + batch_size)
        # Always as many rows, so that one program serves all.
        source, target = np.zeros((batch_size, width), np.int32), np.zeros((batch_size, room), np.int32)
        for row, (ids, prefix) in enumerate(zip(sources[rows], prefixes[rows], strict=True)):
            source[row, : len(ids)], target[row, : len(prefix)] = ids, prefix
        found[rows] = np.asarray(_last_states(model, params, source, target, layer))[: len(prefixes[rows])]
    return found


@partial(jax.jit, static_argnames=("model", "layer"))
def _last_states(
    model: AutoregressiveModel, params: PyTree, source: Array, prefixes: Array, layer: int | None
) -> Array:
    """Source [N, Ls], prefixes [N, L] int32 → hidden states [N, E] float32."""
    network = model.module(params).network
    plan = network.plan(model.encode(network, source), source, prefixes.shape[1] + 1)
    inputs = jnp.pad(prefixes, ((0, 0), (1, 0)), constant_values=START_ID)
    hidden = features_of(network.decode(inputs, plan, keep_layers=layer is not None), layer)
    last = (prefixes != PAD_ID).sum(-1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
