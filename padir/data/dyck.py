"""Balanced words of two types of brackets, and a grammar Dyck(p, q) that gives each of them a probability.

Words have exactly D letters (thesis, section 3.2.1). At depth 0 a bracket is opened, '[' with probability p, else '('.
Where the open brackets just fit into what is left of the word, the last of them is closed. Elsewhere a bracket is
opened with probability q, its type drawn as before, or the last one is closed. A complete output is a word and EOS.

The brackets that are open are a stack of bits, the last one lowest: 0 for '[', 1 for '('.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from padir.errors import PadirError
from padir.types import EOS_ID, PAD_ID, Array, TokenIds

OPEN_SQUARE, CLOSE_SQUARE, OPEN_ROUND, CLOSE_ROUND = 3, 4, 5, 6
BRACKETS = (OPEN_SQUARE, CLOSE_SQUARE, OPEN_ROUND, CLOSE_ROUND)
PIECES = ("<pad>", "</s>", "<unk>", "[", "]", "(", ")")
# Eight rows, not a multiple of 128: nearly all of a larger table would stand for no token.
IDS = TokenIds(num_pieces=len(PIECES), extra_ids=1, rows=8)
# Open brackets are bits of an int32.
_LONGEST = 62


class FirstError(enum.IntEnum):
    """What is wrong with the first wrong token of a text."""

    NONE = 0
    START = 1  # The start token is repeated.
    END = 2  # EOS before the word's end.
    DEPTH = 3  # Deeper than the grammar's greatest depth.
    TOO_LATE = 4  # More open brackets than can be closed before the word's end.
    EMPTY = 5  # A closing bracket where none is open.
    TYPE = 6  # A closing bracket of the wrong type.
    ADD = 7  # No EOS where the word is complete.
    UNKNOWN = 8  # No bracket.


@dataclass(frozen=True)
class Dyck:
    """The grammar.

    Attributes:
      length: D, letters of a word; even.
      p: probability of '[' among opening brackets.
      q: probability of opening a bracket where one can be opened or closed.
      max_depth: most brackets open at once; there the last one is closed. None sets no limit.
    """

    length: int = 32
    p: float = 0.2
    q: float = 0.5
    max_depth: int | None = None

    def __post_init__(self):
        if self.length != int(self.length) or self.length < 2 or self.length % 2 or self.length > _LONGEST:
            raise PadirError(f"Dyck.length: {self.length!r} is not an even number from 2 to {_LONGEST}")
        for name in ("p", "q"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise PadirError(f"Dyck.{name}: {getattr(self, name)} is not a probability; give a number in [0, 1]")
        if self.max_depth is not None and self.max_depth < 1:
            raise PadirError(f"Dyck.max_depth: {self.max_depth} is not at least 1; None sets no limit")

    @property
    def deepest(self) -> int:
        """Most brackets that can be open at once."""
        half = self.length // 2
        return half if self.max_depth is None else min(half, self.max_depth)

    def sample(self, key: Array, rows: int) -> Array:
        """Draws words: → [rows, D] int32."""

        def write(state: tuple[Array, Array], at: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            (depth, stack), (position, key) = state, at
            of_opening, of_type = jax.random.uniform(key, (2, rows))
            must_close = (depth == self.length - position) | (depth == self.deepest)
            opens = (depth == 0) | (~must_close & (of_opening < self.q))
            kind = jnp.where(opens, (of_type >= self.p).astype(jnp.int32), stack & 1)
            token = OPEN_SQUARE + 2 * kind + ~opens
            stack = jnp.where(opens, 2 * stack + kind, stack // 2)
            return (depth + jnp.where(opens, 1, -1), stack), token

        nothing = jnp.zeros((rows,), jnp.int32)
        keys = jax.random.split(key, self.length)
        return jax.lax.scan(write, (nothing, nothing), (jnp.arange(self.length), keys))[1].T

    def log_probability(self, words: np.ndarray) -> np.ndarray:
        """Log-probability of texts [N, D] int: [N] float64, -inf for those that are no words."""
        words = np.asarray(words)
        with np.errstate(divide="ignore"):
            first, second = np.log([self.p, 1.0 - self.p])
            opening, closing = np.log([self.q, 1.0 - self.q])
        total = np.where(first_errors(words, np.full(len(words), self.length), self).positions > 0, -np.inf, 0.0)
        depth = np.zeros(len(words), int)
        for position, token in enumerate(words.T):
            opens = (token == OPEN_SQUARE) | (token == OPEN_ROUND)
            of_type = np.where(token == OPEN_SQUARE, first, second)
            # A bracket that must be closed, or opened, costs nothing but its type. In (3.4) as printed, closing
            # brackets that are forced cost 1 - q, too, and the words' probabilities do not sum to 1.
            must_close = (depth == self.length - position) | (depth == self.deepest)
            chance = np.where(depth == 0, of_type, opening + of_type)
            total = total + np.where(opens, chance, np.where(must_close, 0.0, closing))
            depth = depth + np.where(opens, 1, -1)
        return total

    def number_of_words(self, prefix: Sequence[int] = ()) -> int:
        """In how many ways a prefix can become a word; exact."""
        fault = first_errors(np.array([prefix], int).reshape(1, -1), np.array([len(prefix)]), self)
        if fault.positions[0] or len(prefix) > self.length:
            return 0
        opened = sum(token in (OPEN_SQUARE, OPEN_ROUND) for token in prefix)
        ways = [0] * (self.deepest + 2)
        ways[2 * opened - len(prefix)] = 1
        for _ in range(self.length - len(prefix)):
            # To each depth by opening a bracket of either type, or by closing one.
            ways = [2 * ways[d - 1] * (0 < d <= self.deepest) + ways[d + 1] for d in range(self.deepest + 1)] + [0]
        return ways[0]

    def completions(self, prefix: Sequence[int]) -> list[tuple[int, ...]]:
        """All words that begin with a prefix, in the order of their ids."""
        if not self.number_of_words(prefix):
            return []
        found = [tuple(prefix)]
        for _ in range(self.length - len(prefix)):
            longer = [(*text, bracket) for text in found for bracket in BRACKETS]
            texts = np.array(longer, int)
            faults = first_errors(texts, np.full(len(texts), texts.shape[1]), self)
            found = [text for text, at in zip(longer, faults.positions, strict=True) if not at]
        return found


class Faults(NamedTuple):
    """The first wrong token of each text.

    Attributes:
      positions: [N] int, counted from 1; 0 where nothing is wrong.
      kinds: [N] int, of `FirstError`.
    """

    positions: np.ndarray
    kinds: np.ndarray


def first_errors(tokens: np.ndarray, lengths: np.ndarray, grammar: Dyck) -> Faults:
    """Finds where texts first go wrong: at the first token after which no word, and EOS, can come of them any more.

    Args:
      tokens: [N, L] int, without the start token; what stands beyond a text's length is not read.
      lengths: [N] int.
      grammar: for its length and depth.

    Returns:
      The position and the kind of each error. A prefix that can still become a word has none.
    """
    tokens, lengths = np.asarray(tokens), np.asarray(lengths)
    depth, stack = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.int64)
    positions, kinds = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.int64)
    for position, token in enumerate(tokens.T, 1):
        opens = (token == OPEN_SQUARE) | (token == OPEN_ROUND)
        closes = (token == CLOSE_SQUARE) | (token == CLOSE_ROUND)
        kind = (token >= OPEN_ROUND).astype(np.int64)
        after = depth + opens - closes
        # The first that applies counts.
        wrong = np.select(
            [
                token == PAD_ID,
                (token == EOS_ID) & (position != grammar.length + 1),
                (token != EOS_ID) & (position > grammar.length),
                token == EOS_ID,
                ~opens & ~closes,
                closes & (depth == 0),
                closes & (stack % 2 != kind),
                after > grammar.deepest if grammar.max_depth is not None else np.zeros(len(tokens), bool),
                after > grammar.length - position,
            ],
            [
                FirstError.START,
                FirstError.END,
                FirstError.ADD,
                FirstError.NONE,
                FirstError.UNKNOWN,
                FirstError.EMPTY,
                FirstError.TYPE,
                FirstError.DEPTH,
                FirstError.TOO_LATE,
            ],
            FirstError.NONE,
        )
        here = (positions == 0) & (position <= lengths) & (wrong != FirstError.NONE)
        positions, kinds = np.where(here, position, positions), np.where(here, wrong, kinds)
        # Behind an error nothing is read any more, so the stack of such rows does not matter; it must stay small.
        fine = positions == 0
        stack = np.where(fine & opens, 2 * stack + kind, np.where(fine & closes, stack // 2, stack))
        depth = np.where(fine, after, depth)
    return Faults(positions, kinds)


def is_complete(tokens: np.ndarray, lengths: np.ndarray, grammar: Dyck) -> np.ndarray:
    """Whether texts [N, L], [N] int are a word and EOS: [N] bool."""
    lengths = np.asarray(lengths)
    return (first_errors(tokens, lengths, grammar).positions == 0) & (lengths == grammar.length + 1)


@struct.dataclass
class Reading:
    """What an automaton knows of prefixes that it has read: [N] each.

    Attributes:
      depth: int32, open brackets.
      stack: int32, their types.
      alive: bool, whether the prefix can still become a word and EOS.
      ended: bool, whether it is that already.
      read: int32, letters.
    """

    depth: Array
    stack: Array
    alive: Array
    ended: Array
    read: Array


@struct.dataclass
class DyckVerifier:
    """The perfect process verifier: a `padir.decoding.generation.Verifier` that says 1 of what can become a word.

    Attributes:
      grammar: for its length and depth (static).
    """

    grammar: Dyck = struct.field(pytree_node=False, default=Dyck())

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        """Prefixes [N, L] int32 of `lengths` [N] int32 tokens → [N] float32, 0 or 1. Features are not used."""
        del features
        return self.read(tokens, lengths).alive.astype(jnp.float32)

    def read(self, tokens: Array, lengths: Array) -> Reading:
        """What the automaton knows of prefixes [N, L] int32 of `lengths` [N] int32 tokens."""
        nothing = jnp.zeros(tokens.shape[:1], jnp.int32)
        first = Reading(nothing, nothing, nothing == 0, nothing != 0, nothing)

        def advance(reading: Reading, at: tuple[Array, Array]) -> tuple[Reading, None]:
            position, token = at
            after = self.after(reading, token)
            inside = position < lengths
            return jax.tree.map(lambda new, old: jnp.where(inside, new, old), after, reading), None

        return jax.lax.scan(advance, first, (jnp.arange(tokens.shape[1]), tokens.T))[0]

    def after(self, reading: Reading, token: Array) -> Reading:
        """What it knows after another token: fields [N] or broadcastable to `token` int32, → of their shape."""
        opens = (token == OPEN_SQUARE) | (token == OPEN_ROUND)
        closes = (token == CLOSE_SQUARE) | (token == CLOSE_ROUND)
        kind = (token >= OPEN_ROUND).astype(jnp.int32)
        read = reading.read + 1
        depth = reading.depth + opens - closes
        matches = (reading.depth > 0) & (reading.stack % 2 == kind)
        fits = (depth <= self.grammar.length - read) & (depth <= self.grammar.deepest)
        ends = (token == EOS_ID) & (read == self.grammar.length + 1)
        alive = reading.alive & ~reading.ended & (ends | ((opens | (closes & matches)) & fits))
        stack = jnp.where(opens, 2 * reading.stack + kind, jnp.where(closes, reading.stack // 2, reading.stack))
        # A dead row's stack would outgrow its bits.
        return Reading(depth, jnp.where(alive, stack, 0), alive, reading.ended | (alive & ends), read)


@struct.dataclass
class DyckValue:
    """The perfect verifier of a prefix and of all its continuations: a `padir.decoding.generation.ValueFunction`.

    Attributes:
      verifier: of a grammar.
    """

    verifier: DyckVerifier = DyckVerifier()

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> tuple[Array, Array]:
        """Prefixes [N, L], [N] int32 → 0 or 1 of each [N] and of its continuations [N, V]; float32."""
        del features
        reading = self.verifier.read(tokens, lengths)
        wide = jax.tree.map(lambda field: field[:, None], reading)
        children = self.verifier.after(wide, jnp.arange(IDS.vocab_size)).alive
        return reading.alive.astype(jnp.float32), children.astype(jnp.float32)


@struct.dataclass
class DyckOutcome:
    """The outcome reward: 1 of a word and EOS, 0 of everything else; a `padir.decoding.outcomes.Outcome`.

    Attributes:
      verifier: of a grammar.
    """

    verifier: DyckVerifier = DyckVerifier()

    def __call__(self, tokens: Array, lengths: Array) -> Array:
        """Outputs [N, L], [N] int32 → [N] float32, 0 or 1."""
        reading = self.verifier.read(tokens, lengths)
        return (reading.alive & reading.ended).astype(jnp.float32)


def text_of(tokens: Sequence[int]) -> str:
    """Tokens as text, such as '[()]</s>'."""
    return "".join(PIECES[token] if token < len(PIECES) else "<?>" for token in map(int, tokens))


def word_of(text: str) -> list[int]:
    """The tokens of brackets: '[()]' → [3, 5, 6, 4].

    Raises:
      PadirError: it has other characters.
    """
    if unknown := sorted(set(text) - set("[]()")):
        raise PadirError(f"word_of: {unknown[0]!r} is no bracket; use [ ] ( )")
    return [PIECES.index(character) for character in text]
