"""VGB: sampling under a value function by a random walk that may step back (thesis, Algorithm 2).

A value function V̂ estimates the outcome reward τ that a prefix may expect. The walk is on the tree of prefixes: from a
prefix y it moves to its parent with weight V̂(y), or to a child with weight π_ref(a | y) · V̂(y∘a), where π_ref is the
generator. So errors of V̂ cancel: among complete outputs, the walk's stationary law is π* ∝ π_ref · τ, whatever the
values inside the tree, if they are positive. `ActionValueGuided`, which never steps back, multiplies its errors.

A node is a leaf if it ends in EOS or has its row's limit of tokens. Its value is τ where an `Outcome` says it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.checks import finite, whole
from padir.decoding.generation import (
    Generated,
    PrefixStepFn,
    Rows,
    ValueFunction,
    cut,
    draw,
    is_complete,
    last_tokens,
    put,
)
from padir.decoding.leaves import with_leaves
from padir.decoding.outcomes import Outcome, positive, uniforms, values_of_children
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling, take
from padir.errors import PadirError
from padir.types import Array, PyTree


@struct.dataclass
class Walked(Generated):
    """What a walk returns: see `Generated`. Moves are queries and steps back: `queries.queries + queries.backtracks`,
    where each new run from the prompt counts as one step back, too.

    Attributes:
      proposals: [N] int32, children proposed, taken or not, each for a decoder pass; 0 where all children are weighed.
    """

    proposals: Array


@struct.dataclass
class _Walk:
    """Where each row is.

    Attributes:
      tokens: [N, L] int32; what stands beyond a row's length is arbitrary.
      lengths: [N] int32, of the current node, the prompt's tokens counted.
      values: [N, H + 1] float32, V̂ of the nodes on the path from the root, which has none, by depth.
      scores: [N, H + 1] float32, log-probabilities of these nodes given the prompt.
      unseen: [N] bool, rows that need a pass before they move on: at a node entered from above, or a proposed one.
      leaves_at: [N] int32, the step, or without laziness the move, of this run with which the row leaves the node.
      stop_at: [N] int32, the step, or move, with which the run ends.
      runs_left: [N] int32, how often the row may start again.
      trials: [N] int32, proposals rejected at the current node.
      draws: [N] int32, random numbers used.
      done, failed: [N] bool.
      queries: cost so far.
      proposals: [N] int32.
    """

    tokens: Array
    lengths: Array
    values: Array
    scores: Array
    unseen: Array
    leaves_at: Array
    stop_at: Array
    runs_left: Array
    trials: Array
    draws: Array
    done: Array
    failed: Array
    queries: Queries
    proposals: Array


@struct.dataclass
class _Path:
    """What the generator and the value function said of the inner nodes on the path.

    Attributes:
      log_probs: [N, H, V] float32, of children, by depth of the parent.
      children: [N, H, V] float32, V̂ of children; None if they are proposed.
    """

    log_probs: Array
    children: Array | None


@with_leaves()
@dataclass(frozen=True)
class ValueGuided:
    """VGB: a random walk on the tree of prefixes that may step back (thesis, Algorithm 2).

    Attributes:
      horizon: tokens to generate at most; None: up to the row's limit. H in the following is the limit without the
        prompt, and at most the horizon. With all children weighed, memory grows with horizon · vocabulary.
      steps: of a lazy walk, which stays where it is with probability 1/2; None for `first_leaf`, which is not lazy.
      returns: `first_leaf`: the first leaf, as in the thesis's experiments; its law is π* if V̂ is exact and all leaves
        are as deep: with EOS at several depths, short outputs are too frequent. `last`: the node after `steps`, and
        `uniform`: that after 1 to `steps` steps, which one by chance; both run again if it is no leaf. Their law tends
        to π* under any V̂ that is positive inside.
      children: `all`: V̂ of all children from their parent's pass; that of the node itself is unused. `proposal`: a
        fair coin proposes the parent, or a child drawn from the generator, until one is accepted, in proportion to its
        value. The value function then judges only nodes, each proposed child after a pass of its own.
      bound: M ≥ V̂, for proposals; values above it count as M.
      restarts: how often `last` and `uniform` run again; None: 8·H times. With exact values one long run in 2·H ends
        at a leaf, so that about one row in 50 fails.
      max_moves: of `first_leaf`; None: 8·H². A row that needs more has failed.
      max_trials: proposals at most for a move; then the row has failed.
      floor: least value of inner nodes, so that a V̂ of 0 by mistake cuts nothing off. With 0, a root without any
        weight is seen at once; with more, only where all its children are leaves.
    """

    horizon: int | None = None
    steps: int | None = None
    returns: str = "first_leaf"
    children: str = "all"
    bound: float = 1.0
    restarts: int | None = None
    max_moves: int | None = None
    max_trials: int = 1000
    floor: float = 1e-6

    def __post_init__(self):
        for name, known in (("returns", ("first_leaf", "last", "uniform")), ("children", ("all", "proposal"))):
            if getattr(self, name) not in known:
                raise PadirError(f"ValueGuided.{name}: {getattr(self, name)!r} is not one of {', '.join(known)}")
        for name in ("horizon", "steps", "max_moves"):
            if getattr(self, name) is not None:
                whole(f"ValueGuided.{name}", getattr(self, name))
        whole("ValueGuided.max_trials", self.max_trials)
        positive("ValueGuided.bound", self.bound)
        finite("ValueGuided.floor", self.floor)
        if self.floor < 0:
            raise PadirError(f"ValueGuided.floor: {self.floor} is negative; values are at least 0")
        if self.restarts not in (None, 0):
            whole("ValueGuided.restarts", self.restarts, "or None, or 0")
        if self.lazy and self.steps is None:
            raise PadirError(f"ValueGuided.steps: set them for returns={self.returns!r}")
        if self.lazy and self.max_moves is not None:
            raise PadirError(f"ValueGuided.max_moves: returns={self.returns!r} ends after its steps; leave it None")
        if not self.lazy and (self.steps, self.restarts) != (None, None):
            raise PadirError("ValueGuided: returns='first_leaf' takes no steps and no restarts; set max_moves instead")

    @property
    def lazy(self) -> bool:
        """Whether the walk may stay where it is."""
        return self.returns != "first_leaf"

    def generate(
        self,
        step_fn: PrefixStepFn,
        cache: PyTree,
        rows: Rows,
        judge: ValueFunction,
        key: Array,
        outcome: Outcome | None = None,
    ) -> Walked:
        """Walks until every row has its leaf, or has failed: without weight at the root, or at the end of its budget.

        A pass of the batch serves every row that is not done: in between, rows move as long as they stand at nodes
        whose children they know.

        Args:
          step_fn: the generator.
          cache: with the prompts' keys and values.
          rows: prompts and limits, [N, …].
          judge: V̂. Each child that the generator allows, or each that is proposed and the root, counts as a call.
          key: [] randomness.
          outcome: τ, which replaces V̂ of leaves. Their law needs it, unless V̂ of leaves is τ.

        Returns:
          The leaves and what they cost: a query for each move to a child.
        """
        size, depth = len(rows.live), min(self.horizon or rows.tokens.shape[1], rows.tokens.shape[1])
        rows = rows.replace(limits=jnp.minimum(rows.limits, rows.prompt_lengths + depth))
        walker = _Walker(self, rows, key, outcome)
        walk = walker.at_roots(depth)
        vocabulary = jax.eval_shape(step_fn, walk.lengths, walk.lengths, cache)[0].shape[-1]
        nothing = jnp.zeros((size, depth, vocabulary), jnp.float32)

        def step(carry: tuple) -> tuple:
            walk, path, cache, passes = carry
            log_probs, features, cache = step_fn(last_tokens(walk.tokens, walk.lengths), walk.lengths, cache)
            walk, path = walker.visit(walk, path, log_probs, *judge(walk.tokens, walk.lengths, features))
            return walker.move_on(walk, path), path, cache, passes + 1

        first = (walk, _Path(nothing, nothing if self.children == "all" else None), cache, jnp.int32(0))
        walk, _, _, passes = jax.lax.while_loop(lambda carry: ~carry[0].done.all(), step, first)
        score, tokens = take(walk.scores, walker.depth(walk)[:, None])[:, 0], cut(walk.tokens, walk.lengths)
        return Walked(tokens, walk.lengths, walk.failed, score, walk.queries, passes, walk.proposals)


@dataclass(frozen=True, eq=False)
class _Walker:
    """Moves rows; of the arguments of `ValueGuided.generate` those that it needs, with limits at most the horizon."""

    config: ValueGuided
    rows: Rows
    key: Array
    outcome: Outcome | None

    def depth(self, walk: _Walk) -> Array:
        """Tokens generated, [N] int32."""
        return walk.lengths - self.rows.prompt_lengths

    def leaf(self, walk: _Walk) -> Array:
        """Whether the current nodes are leaves, [N] bool."""
        return is_complete(walk.tokens, walk.lengths, self.rows.limits)

    def uniforms(self, draws: Array) -> Array:
        """Of each row's draw with this number: [N] → [N] in [0, 1)."""
        return uniforms(self.key, self.rows.sample_ids, draws)

    def at_roots(self, depth: int) -> _Walk:
        """All rows before their first step; `depth` is H of the carry."""
        rows, size = self.rows, len(self.rows.live)
        nothing, none = jnp.zeros((size,), jnp.int32), jnp.zeros((size,), bool)
        longest = rows.limits - rows.prompt_lengths
        runs = self.config.restarts if self.config.restarts is not None else 8 * longest * self.config.lazy
        walk = _Walk(
            tokens=rows.tokens,
            lengths=rows.prompt_lengths,
            values=jnp.zeros((size, depth + 1), jnp.float32),
            scores=jnp.zeros((size, depth + 1), jnp.float32),
            unseen=none,
            leaves_at=nothing,
            stop_at=jnp.broadcast_to(jnp.int32(self.config.max_moves or 8 * longest**2), (size,)),
            runs_left=jnp.broadcast_to(jnp.int32(runs), (size,)),
            trials=nothing,
            draws=nothing,
            done=~rows.live,
            failed=none,
            queries=Queries.none(size),
            proposals=nothing,
        )
        # A root that is a leaf, such as a prompt that ends in EOS, is the output.
        walk = self.start(walk.replace(done=walk.done | self.leaf(walk)), rows.live)
        return walk.replace(unseen=~walk.done)

    def start(self, walk: _Walk, here: Array) -> _Walk:
        """Puts rows `here` [N] at their roots for a new run."""
        walk = walk.replace(lengths=jnp.where(here, self.rows.prompt_lengths, walk.lengths))
        if self.config.returns == "last":
            walk = walk.replace(stop_at=jnp.full_like(walk.stop_at, self.config.steps))
        if self.config.returns == "uniform":
            steps = jnp.ceil((1 - self.uniforms(walk.draws)) * self.config.steps).astype(jnp.int32)
            walk = walk.replace(stop_at=jnp.where(here, steps, walk.stop_at), draws=walk.draws + here)
        return self.arrive(walk.replace(leaves_at=jnp.where(here, -1, walk.leaves_at)), here)

    def arrive(self, walk: _Walk, here: Array) -> _Walk:
        """Draws how long rows `here` [N] stay at the node that they have just reached."""
        stays = jnp.zeros_like(walk.draws)
        if self.config.lazy:
            # The number of heads before the first tail. None counts beyond the end of the run.
            stays = jnp.floor(-jnp.log2(self.uniforms(walk.draws)))
            stays = jnp.minimum(stays, self.config.steps).astype(jnp.int32)
        return walk.replace(
            leaves_at=jnp.where(here, walk.leaves_at + 1 + stays, walk.leaves_at),
            trials=jnp.where(here, 0, walk.trials),
            draws=walk.draws + (here & self.config.lazy),
        )

    def visit(self, walk: _Walk, path: _Path, log_probs: Array, value: Array, given: Array) -> tuple[_Walk, _Path]:
        """Takes in a pass: log_probs [N, V], V̂ of nodes [N] and of their children [N, V]. All rows not done need it."""
        here, depth = ~walk.done, self.depth(walk)
        judged = (log_probs > -jnp.inf).sum(axis=-1) if self.config.children == "all" else 1
        account = walk.queries
        walk = walk.replace(
            unseen=jnp.zeros_like(here),
            queries=account.replace(
                verifier_calls=account.verifier_calls + jnp.where(here, judged, 0),
                decoder_passes=account.decoder_passes + here,
            ),
        )
        numbers, room = jnp.arange(len(here)), path.log_probs.shape[1]
        if self.config.children == "all":
            last = here & (walk.lengths + 1 >= self.rows.limits)
            given = values_of_children(given, self.outcome, walk.tokens, walk.lengths, last, self.config.floor)
            at = jnp.where(here, depth, room)
            return walk, _Path(
                path.log_probs.at[numbers, at].set(log_probs, mode="drop"),
                path.children.at[numbers, at].set(given, mode="drop"),
            )
        walk, kept = self.consider(walk, value)
        at = jnp.where(kept, depth, room)
        return walk, _Path(path.log_probs.at[numbers, at].set(log_probs, mode="drop"), None)

    def consider(self, walk: _Walk, value: Array) -> tuple[_Walk, Array]:
        """Accepts proposed children of values [N], or goes back to their parents: → (walk, who stays [N] bool)."""
        depth, leaf = self.depth(walk), self.leaf(walk)
        proposed = ~walk.done & (depth > 0)
        at_leaf = value if self.outcome is None else self.outcome(walk.tokens, walk.lengths).astype(jnp.float32)
        value = jnp.where(leaf, at_leaf, jnp.maximum(value, self.config.floor))
        accepted = proposed & (self.uniforms(walk.draws) * self.config.bound < value)
        walk = walk.replace(
            lengths=walk.lengths - (proposed & ~accepted),
            values=put(walk.values, depth, value, accepted),
            trials=walk.trials + proposed,
            draws=walk.draws + proposed,
            queries=walk.queries.replace(queries=walk.queries.queries + accepted),
        )
        return self.arrive(walk, accepted), ~walk.done & (accepted | ~proposed)

    def move_on(self, walk: _Walk, path: _Path) -> _Walk:
        """Moves rows until each is done, or needs a pass."""

        def can_move(walk: _Walk) -> Array:
            return ~walk.done & ~walk.unseen

        def step(walk: _Walk) -> _Walk:
            """One move of each row that can move without a pass; rows whose walk is over end or start again."""
            here, leaf = can_move(walk), self.leaf(walk)
            over = here & ((walk.leaves_at >= walk.stop_at) | (leaf & (not self.config.lazy)))
            tried = here & ~over & (walk.trials >= self.config.max_trials)
            again = over & ~leaf & (walk.runs_left > 0)
            failed = tried | (over & ~leaf & ~again)
            walk = walk.replace(done=walk.done | (over & leaf) | failed, failed=walk.failed | failed)
            walk = self.move(walk, path, here & ~over & ~tried)
            depth, account = self.depth(walk), walk.queries
            account = account.replace(
                backtracks=account.backtracks + (again & (depth > 0)),
                erased=account.erased + jnp.where(again, depth, 0),
            )
            return self.start(walk.replace(runs_left=walk.runs_left - again, queries=account), again)

        return jax.lax.while_loop(lambda walk: can_move(walk).any(), step, walk)

    def move(self, walk: _Walk, path: _Path, here: Array) -> _Walk:
        """Moves rows `here` [N] to a neighbour, or writes a proposed child; those without neighbours have failed."""
        depth, numbers = self.depth(walk), jnp.arange(len(here))
        at = jnp.minimum(depth, path.log_probs.shape[1] - 1)
        log_probs = path.log_probs[numbers, at]
        weighed = self.config.children == "all"
        if weighed:
            children = path.children[numbers, at]
            up, down, token, used = self.choose(walk, here, log_probs + jnp.log(children))
            value = take(children, token[:, None])[:, 0]
        else:
            up, down, token, used = self.propose(walk, here, log_probs)
            value = jnp.zeros_like(walk.values[:, 0])
        score = take(walk.scores, depth[:, None])[:, 0] + take(log_probs, token[:, None])[:, 0]
        account = walk.queries
        walk = walk.replace(
            tokens=put(walk.tokens, walk.lengths, token, down),
            lengths=walk.lengths + down - up,
            values=put(walk.values, depth + 1, value, down),
            scores=put(walk.scores, depth + 1, score, down),
            draws=walk.draws + used * here,
            queries=account.replace(
                queries=account.queries + (down & weighed),
                backtracks=account.backtracks + up,
                erased=account.erased + up,
            ),
        )
        if not weighed:
            walk = walk.replace(
                unseen=walk.unseen | down, proposals=walk.proposals + down, trials=walk.trials + (here & ~up & ~down)
            )
            return self.arrive(walk, up)
        stuck = here & ~up & ~down
        walk = self.arrive(walk.replace(done=walk.done | stuck, failed=walk.failed | stuck), up | down)
        # A node at which the run ends needs no pass either.
        return walk.replace(unseen=walk.unseen | (down & ~self.leaf(walk) & (walk.leaves_at < walk.stop_at)))

    def choose(self, walk: _Walk, here: Array, weights: Array) -> tuple[Array, Array, Array, int]:
        """Draws neighbours of rows `here` [N]; log-weights of children [N, V].

        Returns:
          (who moves up [N] bool, who moves down [N] bool, to which token [N] int32, random numbers used).
        """
        depth, size = self.depth(walk), weights.shape[-1]
        parent = jnp.where(depth > 0, jnp.log(take(walk.values, depth[:, None])[:, 0]), -jnp.inf)
        weights = jnp.where(self.leaf(walk)[:, None], -jnp.inf, weights)
        weights = jnp.concatenate([weights, parent[:, None]], axis=1)
        choice = draw(Sampling(temperature=1.0), weights, self.key, self.rows.sample_ids, walk.draws)[0]
        moves = here & (weights.max(axis=-1) > -jnp.inf)
        return moves & (choice == size), moves & (choice < size), jnp.minimum(choice, size - 1), 1

    def propose(self, walk: _Walk, here: Array, log_probs: Array) -> tuple[Array, Array, Array, int]:
        """Proposes the parent, and accepts it or not, or a child; arguments and result as of `choose`."""
        leaf, depth = self.leaf(walk), self.depth(walk)
        parent = leaf | ((depth > 0) & (self.uniforms(walk.draws) < 0.5))
        # A leaf has one neighbour, so that nothing is gained by rejecting it.
        value = take(walk.values, depth[:, None])[:, 0]
        up = parent & (leaf | (self.uniforms(walk.draws + 1) * self.config.bound < value))
        token = draw(Sampling(temperature=1.0), log_probs, self.key, self.rows.sample_ids, walk.draws + 1)[0]
        allowed = take(log_probs, token[:, None])[:, 0] > -jnp.inf
        return here & up, here & ~parent & allowed, token, 2
