"""Translation under a verifier: an autoregressive model generates, a judge of its prefixes says what may stay."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from padir import rng
from padir.decoding import constrained
from padir.decoding.automaton import Automaton
from padir.decoding.constrained import Track
from padir.decoding.generation import Rows
from padir.decoding.guided import Guided
from padir.decoding.state import Hypotheses
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verifiers import THRESHOLD, for_rows, with_threshold
from padir.errors import PadirError
from padir.models.base import BaseModel
from padir.models.prefixes import prefix_steps
from padir.types import PAD_ID, Array, PyTree


@struct.dataclass
class Judge:
    """Who judges the prefixes of translations; a pytree, so `jit` takes it as an argument.

    Attributes:
      of: a `Verifier` that is a pytree. Samplers that weigh all next tokens at once take its `values`, a
        `ValueFunction`.
      layer: the decoder layer whose hidden states it reads; see `prefixes.features_of` (static).
      threshold: below which samplers reject that have no threshold of their own (static).
    """

    role: ClassVar[str] = "judge"

    of: PyTree
    layer: int | None = struct.field(pytree_node=False, default=None)
    threshold: float = struct.field(pytree_node=False, default=THRESHOLD)

    @property
    def knows_values(self) -> bool:
        """Whether it also judges all continuations of a prefix at once."""
        return callable(getattr(self.of, "values", None))


def check(config: Guided, judge: Judge | None, *, has_lengths: bool = False) -> None:
    """Refuses a sampler that has nobody, or the wrong one, to judge what it generates, and given lengths.

    Raises:
      PadirError: there is no judge, or one that knows no values of next tokens where a walk weighs all of them or
        tokens are drawn against a bound, or lengths are given.
    """
    sampler = type(config.sampler).__name__
    if has_lengths:
        raise PadirError(f"decode: {sampler} writes until EOS; leave the lengths of targets out")
    if judge is None:
        raise PadirError(
            f"decode: {sampler} generates under a verifier, and there is none; give --verifier=DIR, the folder that "
            "`padir verifier` wrote, or use Autoregressive"
        )
    if judge.knows_values or not config.weighs_next_tokens:
        return
    if isinstance(config.sampler, ValueGuided):
        raise PadirError(
            "decode: ValueGuided.children = 'all' weighs every next token, but a verifier that was trained on prefixes "
            "judges only what has been written; set it to 'proposal', or use a Listed verifier"
        )
    if getattr(config.sampler, "bound", None) is not None:
        raise PadirError(
            "decode: ActionValueGuided.bound draws tokens again at no cost where all values are known, but here each "
            "takes a decoder pass; set it to None"
        )


def decode(
    model: BaseModel,
    params: PyTree,
    source: Array,
    key: Array,
    config: Guided,
    judge: Judge | None,
    constraint: Automaton | None = None,
) -> Hypotheses:
    """Translates a batch.

    Args:
      model: an `AutoregressiveModel`.
      params: its parameters.
      source: [B, Ls] int32.
      key: randomness; the same for every batch. What a sample gets of it depends on its source and its number alone:
        a translation depends on neither its neighbours nor padding, and different sources get different noise.
      config: sampler and lengths (static).
      judge: who judges; rows are [B · num_samples], those of a source are neighbours.
      constraint: of B rows, what each source's translation must obey: the generator is then the locally constrained
        model. A source without such an output fails, at no cost.

    Returns:
      `Hypotheses` with K = num_samples and L = max_target_length, best first: those that failed come last. They hold
      what was written until then. `queries` says what each cost.

    Raises:
      PadirError: what `check` refuses.
    """
    check(config, judge)
    if constraint is not None:
        constrained.check_guided(config)
    count, batch = config.num_samples, source.shape[0]
    room = config.max_length(source.shape[1], model.max_target_length)
    source_lengths = (source != PAD_ID).sum(-1)
    # What a row may write depends on its own source alone, never on the bucket it is padded to.
    limits = jnp.minimum(config.max_length(source_lengths, model.max_target_length), room)
    if (horizon := getattr(config.sampler, "horizon", None)) is not None:
        # Verifier and constraint must know of it: what cannot be completed by then is nothing to write.
        limits = jnp.minimum(limits, horizon)
    live = source_lengths > 0
    possible = jnp.ones_like(live) if constraint is None else constraint.fewest() <= limits
    rows = Rows(
        tokens=jnp.full((batch * count, room), PAD_ID, jnp.int32),
        prompt_lengths=jnp.zeros((batch * count,), jnp.int32),
        limits=jnp.repeat(limits, count),
        live=jnp.repeat(live & possible, count),
        sample_ids=(rng.number_of_source(source)[:, None] + jnp.arange(count)).reshape(-1),
    )
    step, cache = prefix_steps(model, params, source, rows.tokens[:, :0], room, judge.layer)
    if constraint is not None:
        every = constraint.repeat(count)
        step = constrained.constrained_prefixes(step, every)
        cache = cache.replace(progress=Track.empty(every, rows.limits, room + 1))
    judged_by = config.judged_by(for_rows(judge.of, rows, key))
    found = with_threshold(config.sampler, judge.threshold).generate(step, cache, rows, judged_by, key)

    def ranked(field: Array) -> Array:
        of_source = field.reshape(batch, count, *field.shape[1:])
        return jnp.take_along_axis(of_source, order.reshape(batch, count, *(1,) * (field.ndim - 1)), axis=1)

    scores = found.score / jnp.maximum(found.lengths, 1) ** config.alpha
    order = jnp.lexsort((-scores.reshape(batch, count), found.failed.reshape(batch, count)), axis=-1)
    tokens = jnp.pad(found.tokens, ((0, 0), (0, model.max_target_length - room)))
    lengths = ranked(found.lengths)
    hypotheses = Hypotheses(
        tokens=ranked(tokens),
        scores=ranked(scores),
        predicted_lengths=lengths,
        steps_run=ranked(found.queries.decoder_passes),
        batch_steps=found.batch_steps,
        queries=jax.tree.map(ranked, found.queries),
        failed=ranked(found.failed),
    )
    return hypotheses if constraint is None else constrained.with_failed(hypotheses, live, possible)
