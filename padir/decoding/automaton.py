"""Decoding within a language: an automaton over tokens says what may be written next.

From left to right, a token is allowed if an output that begins so can still be completed within the row's limit; so no
row ever runs into a dead end. All positions at once, the likeliest output of a given length is a path through the
automaton (Viterbi).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from padir.data.piece_automata import DEAD, ENDED, NEVER, START, UNREACHABLE, PieceTable
from padir.decoding.sampling import argmax, logsumexp
from padir.errors import PadirError
from padir.types import PAD_ID, Array

# Fewest states and classes that tables are padded to, and most entries of all tables of a batch.
_LEAST_STATES = 32
_LEAST_CLASSES = 128
MOST_ENTRIES = 1 << 27


@struct.dataclass
class Automaton:
    """The automata of a batch, padded to common sizes: A tables, S states, C classes of tokens, N rows.

    Attributes:
      which: [N] int32, the table of each row.
      classes: [A, V] int32, the class of each token id.
      steps: [A, S, C] int32, the next state by state and class.
      distances: [A, S] int32, the fewest tokens, EOS counted, that complete an output.
      lengths: [A, L + 1] int32, for each number of tokens the next one that an output can have; 0 if there is none.
    """

    which: Array
    classes: Array
    steps: Array
    distances: Array
    lengths: Array

    @classmethod
    def of(
        cls, tables: Sequence[PieceTable], rows: int, *, vocab_size: int, longest: int, room: tuple[int, int] = (0, 0)
    ) -> Automaton:
        """Puts the tables of a batch beside each other, as numpy arrays.

        Sizes are rounded up to powers of two, and if all sources have the same table, it is kept once, so that few
        programs are compiled.

        Args:
          tables: one per source.
          rows: rows of the batch, at least as many; those that only pad it get the first table.
          vocab_size: V.
          longest: L.
          room: least (S, C): what other batches need, so that one program may serve. Left out if it would be too large.

        Raises:
          PadirError: they are too large to hold.
        """
        distinct = list({id(table): table for table in tables}.values())
        if len(distinct) > 1:
            distinct = [*tables, *[tables[0]] * (rows - len(tables))]
        own = padded_size(distinct)
        states, classes = max(own[0], room[0]), max(own[1], room[1])
        if len(distinct) * states * classes > MOST_ENTRIES:
            states, classes = own
        if len(distinct) * states * classes > MOST_ENTRIES:
            raise PadirError(
                f"constraint: {len(distinct)} tables of {states} states and {classes} classes of tokens are too large; "
                "decode smaller batches, or use fewer phrases"
            )
        made = cls(
            which=np.arange(rows, dtype=np.int32) % len(distinct),
            classes=np.full((len(distinct), vocab_size), NEVER, np.int32),
            steps=np.full((len(distinct), states, classes), DEAD, np.int32),
            distances=np.full((len(distinct), states), UNREACHABLE, np.int32),
            lengths=np.stack([table.lengths(longest) for table in distinct]),
        )
        for number, table in enumerate(distinct):
            made.classes[number, : len(table.classes)] = table.classes
            made.steps[number, : len(table.steps), : table.steps.shape[1]] = table.steps
            made.distances[number, : len(table.distances)] = table.distances
        return made

    @property
    def rows(self) -> int:
        """N."""
        return self.which.shape[0]

    def keep(self, rows: Array) -> Automaton:
        """The automata of some rows, [M] int32; a row may be kept several times."""
        return self.replace(which=jnp.asarray(self.which)[rows])

    def repeat(self, count: int) -> Automaton:
        """Each row `count` times, side by side."""
        return self.replace(which=jnp.repeat(self.which, count))

    def starts(self) -> Array:
        """The state of each row before its first token: [N] int32."""
        return jnp.full(self.which.shape, START, jnp.int32)

    def after(self, states: Array, tokens: Array) -> Array:
        """The states that tokens lead to: [N], [N] → [N] int32."""
        return self.steps[self.which, states, self.classes[self.which, tokens]]

    def distances_after(self, states: Array) -> Array:
        """The fewest tokens still to write after each token: states [N] → [N, V] int32; 0 after EOS."""
        of_class = self.distances[self.which[:, None], self.steps[self.which, states]]
        return jnp.take_along_axis(of_class, self.classes[self.which], axis=1)

    def fewest(self) -> Array:
        """The fewest tokens of an output, EOS counted: [N] int32; `UNREACHABLE` if there is no output."""
        return self.distances[self.which, START]

    def feasible_lengths(self, lengths: Array) -> Array:
        """The next length with an output for each, or the longest one: [N, k] int32, at most L → [N, k]; 0 if none."""
        return jnp.take_along_axis(self.lengths[self.which], lengths, axis=1)


def padded_size(tables: Sequence[PieceTable]) -> tuple[int, int]:
    """The (S, C) that tables are padded to: powers of two."""
    states = max(_LEAST_STATES, *(len(table.steps) for table in tables))
    classes = max(_LEAST_CLASSES, *(table.steps.shape[1] for table in tables))
    return _power_of_two(states), _power_of_two(classes)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def likeliest(logits: Array, lengths: Array, automaton: Automaton) -> tuple[Array, Array]:
    """The likeliest outputs of given lengths whose tokens are independent: a path through the automaton (Viterbi).

    Args:
      logits: [N, L, V]; -inf forbids a token.
      lengths: [N] int32, tokens of each output, EOS counted, which is the last; 0 or a length without an output of a
        row that is ignored.
      automaton: of N rows.

    Returns:
      (tokens [N, L] int32, 0 beyond each length; their log-probabilities [N, L] float32 under the logits as given).
    """
    logits = logits.astype(jnp.float32)

    which = automaton.which
    tokens = jax.vmap(_path)(logits, lengths, automaton.classes[which], automaton.steps[which])
    chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    inside = jnp.arange(logits.shape[1]) < lengths[:, None]
    return jnp.where(inside, tokens, PAD_ID), jnp.where(inside, chosen - logsumexp(logits), 0.0)


def _path(logits: Array, length: Array, classes: Array, steps: Array) -> Array:
    """The best tokens of one row: logits [L, V], length [], classes [V], steps [S, C] → [L] int32."""
    inside = jnp.arange(logits.shape[0]) < length
    of_class = jax.ops.segment_max(logits.T, classes, steps.shape[1]).T
    of_class = of_class.at[:, NEVER].set(-jnp.inf)

    def backwards(ahead: Array, here: tuple[Array, Array]) -> tuple[Array, Array]:
        """The best sum of all that follows each state; also handed on for the way back."""
        best, counts = here
        before = (best + ahead[steps]).max(axis=1)
        return jnp.where(counts, before, ahead), ahead

    end = jnp.where(jnp.arange(steps.shape[0]) == ENDED, 0.0, -jnp.inf)
    _, ahead = jax.lax.scan(backwards, end, (of_class, inside), reverse=True)

    def forwards(state: Array, here: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        best, ahead, counts = here
        chosen = argmax(best + ahead[steps[state]])
        return jnp.where(counts, steps[state, chosen], state), chosen

    _, chosen = jax.lax.scan(forwards, jnp.asarray(START, jnp.int32), (of_class, ahead, inside))
    among = jnp.where(classes == chosen[:, None], logits, -jnp.inf)
    return argmax(among)
