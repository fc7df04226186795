"""The experiment with a model that trains here: synthetic lines, a verifier of every layer, and several samplers.

It has the shape of the thesis's experiment with CodeLlama-7B, none of its numbers: a small model writes test cases like
those that it has seen, a known share of which is wrong, and is asked for distinct correct ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir import rng
from padir.appending import lines, protocol
from padir.appending.protocol import Row, nucleus
from padir.checks import finite, whole
from padir.data import append_tests
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.generation import Rows
from padir.decoding.rejection import BlockBestOf
from padir.decoding.verifiers import AlwaysAccept, RandomVerifier, for_rows
from padir.models.autoregressive import AutoregressiveModel
from padir.models.prefixes import features_of, prefix_steps
from padir.nn.network import NetworkConfig
from padir.progress import progress
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh
from padir.theory.claims import Claim
from padir.training.step import make_train_step
from padir.types import EOS_ID, Array, PyTree
from padir.verifier.training import ProbeTraining, train_probe

# The only source there is.
_SOURCE = np.array([[EOS_ID]], np.int32)
PLAIN, BLOCK, RANDOM = "plain", "block best of 4", "backtracking, random verifier"
LAST = "after the norm"


@dataclass(frozen=True)
class MiniConfig:
    """Settings of the small experiment.

    Attributes:
      network: size of the language model.
      steps, batch_size, peak_learning_rate: of its training, with AdamW; texts are drawn on the fly.
      lines: test cases of a text, and asked for.
      wrong: share of wrong test cases in the training texts.
      num_names: functions that texts are about. (The thesis tests on names that the model has never seen; a model of
        this size would have to learn to copy first.)
      examples: completions that a verifier is trained on.
      names, repeats, runs: functions of a run, completions of each, and runs.
      top_p: nucleus of all samplers; their temperature is 1.
      thresholds: of the trained verifiers: the thesis's, and the middle. So few prefixes are wrong here that a verifier
        is rarely as sure of one as the thesis's threshold asks.
      random_threshold: of the random verifier.
      seed: of everything.
    """

    network: NetworkConfig
    steps: int = 2000
    batch_size: int = 32
    peak_learning_rate: float = 2e-3
    lines: int = 4
    wrong: float = 0.15
    num_names: int = 40
    examples: int = 2000
    names: int = 10
    repeats: int = 10
    runs: int = 5
    top_p: float = 0.95
    thresholds: tuple[float, ...] = (0.1, 0.5)
    random_threshold: float = 0.1
    seed: int = 0

    def __post_init__(self):
        for name in ("steps", "batch_size", "lines", "num_names", "examples", "names", "repeats", "runs"):
            whole(f"MiniConfig.{name}", getattr(self, name))
        finite("MiniConfig.peak_learning_rate", self.peak_learning_rate)

    @property
    def model(self) -> AutoregressiveModel:
        """The language model, without parameters."""
        return AutoregressiveModel(lines.IDS, self.network, 1, lines.room_of(self.lines))

    @property
    def known_names(self) -> list[str]:
        """What the training texts are about."""
        return append_tests.random_names(self.num_names, np.random.default_rng(self.seed))


def train_language_model(config: MiniConfig) -> tuple[PyTree, list[float]]:
    """Trains the model: (its parameters, the loss at every hundredth of the run)."""
    model, mesh = config.model, make_mesh(jax.devices()[:1])
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.peak_learning_rate, config.steps // 20 + 1, config.steps)
    optimizer = optax.adamw(schedule, weight_decay=0.01)
    state = create_train_state(model, optimizer, config.seed, mesh)
    step_fn = make_train_step(model, optimizer, schedule, config.seed, mesh)
    random, names = np.random.default_rng(config.seed), config.known_names
    source = np.full((config.batch_size, 1), EOS_ID, np.int32)
    losses, every = [], max(1, config.steps // 100)
    for step in progress(range(config.steps), label="language model", unit="steps"):
        drawn = lines.texts(names, config.batch_size, random, lines=config.lines, wrong=config.wrong)[0]
        state, metrics = step_fn(state, {"encoder_input_tokens": source, "decoder_target_tokens": drawn})
        if (step + 1) % every == 0:
            losses.append(float(metrics["loss"]))
    return state.params, losses


@dataclass(frozen=True, eq=False)
class Writer:
    """The language model as a generator of test cases.

    Attributes:
      config: settings.
      params: of the model.
    """

    config: MiniConfig
    params: PyTree

    @cached_property
    def _generate(self) -> Any:
        model, room = self.config.model, lines.room_of(self.config.lines)

        @partial(jax.jit, static_argnames=("sampler", "layer"))
        def generate(sampler: Any, layer: int | None, params: PyTree, rows: Rows, judge: PyTree, key: Array) -> PyTree:
            prompts = rows.tokens[:, : lines.PROMPT]
            step, cache = prefix_steps(model, params, jnp.asarray(_SOURCE), prompts, room, layer)
            return sampler.generate(step, cache, rows, for_rows(judge, rows, key), key)

        return generate

    def write(
        self, names: Sequence[str], sampler: Any, judge: PyTree, *, stream: str, layer: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One completion for each name: (tokens [n, L] int32, prompt included; queries [n])."""
        room = lines.room_of(self.config.lines)
        tokens = np.zeros((len(names), room), np.int32)
        for row, name in zip(tokens, names, strict=True):
            row[: lines.PROMPT] = lines.tokens_of(lines.prompt(name))
        count = len(names)
        rows = Rows(
            tokens=jnp.asarray(tokens),
            prompt_lengths=jnp.full((count,), lines.PROMPT, jnp.int32),
            limits=jnp.full((count,), room, jnp.int32),
            live=jnp.ones((count,), bool),
            sample_ids=jnp.arange(count, dtype=jnp.int32),
        )
        key = rng.stream(self.config.seed, f"mini/{stream}")
        found = self._generate(sampler, layer, self.params, rows, judge, key)
        return np.asarray(found.tokens), np.asarray(found.queries.queries)

    @cached_property
    def _read(self) -> Any:
        model, room = self.config.model, lines.room_of(self.config.lines)

        @partial(jax.jit, static_argnames="layer")
        def read(params: PyTree, tokens: Array, layer: int | None) -> Array:
            network, source = model.module(params).network, jnp.asarray(_SOURCE)
            plan = network.plan(model.encode(network, source), source, room + 1)
            output = network.decode(jnp.pad(tokens, ((0, 0), (1, 0))), plan, keep_layers=layer is not None)
            return features_of(output, layer)

        return read

    def features(self, tokens: np.ndarray, lengths: np.ndarray, layer: int | None) -> np.ndarray:
        """Hidden states of the prefixes of `lengths` [n] tokens: [n, E] float32."""
        parts = []
        for start in range(0, len(tokens), 200):
            part = np.pad(tokens[start : start + 200], ((0, max(0, start + 200 - len(tokens))), (0, 0)))
            rows = np.arange(min(200, len(tokens) - start))
            parts.append(np.asarray(self._read(self.params, part, layer))[rows, lengths[start : start + 200]])
        return np.concatenate(parts)


def train_verifiers(writer: Writer) -> dict[str, tuple[int | None, Any]]:
    """A linear verifier of every layer's output, and of the last after its norm: (number of the layer, `TrainedProbe`).

    Examples are those of the thesis: of each completion its first error and a random token before it.
    """
    config, random = writer.config, np.random.default_rng([writer.config.seed, 1])
    names = [config.known_names[at] for at in random.integers(0, config.num_names, config.examples)]
    plain = Backtracking(quota=0, sampling=nucleus(config.top_p, 1.0))
    tokens, _ = writer.write(names, plain, AlwaysAccept(), stream="examples")
    chosen, lengths, labels, groups = [], [], [], []
    for row, (name, text) in enumerate(zip(names, tokens, strict=True)):
        pieces = lines.pieces_of(text[lines.PROMPT :])
        for place, label in protocol.example_places(pieces, name, random, requested=config.lines):
            chosen.append(row)
            lengths.append(lines.PROMPT + place + 1)
            labels.append(label)
            groups.append(row)
    found = {}
    for layer in (*range(1, config.network.num_decoder_layers + 1), None):
        features = writer.features(tokens[chosen], np.array(lengths), layer)
        trained = train_probe(features, np.array(labels), np.array(groups), ProbeTraining(seed=config.seed))
        found[LAST if layer is None else f"layer {layer}"] = layer, trained
    return found


def _named(verifier: str, threshold: float) -> str:
    """Name of backtracking under a verifier."""
    return f"backtracking, {verifier}, {threshold}"


def compare(writer: Writer, verifiers: Mapping[str, tuple[int | None, Any]]) -> dict[str, Row]:
    """Scores of all samplers, by name; each completes the same prompts in every run."""
    config, sampling = writer.config, nucleus(writer.config.top_p, 1.0)

    def backtracking(threshold: float) -> Backtracking:
        return Backtracking(4, 4, threshold=threshold, sampling=sampling)

    systems = {
        PLAIN: (Backtracking(quota=0, sampling=sampling), AlwaysAccept(), None),
        RANDOM: (backtracking(config.random_threshold), RandomVerifier(), None),
    }
    for name, (layer, of) in verifiers.items():
        systems |= {
            _named(name, threshold): (backtracking(threshold), of.probe, layer) for threshold in config.thresholds
        }
    best = max(verifiers, key=lambda name: verifiers[name][1].accuracy)
    block = BlockBestOf(Block(delimiters=(lines.NEWLINE,), shortest=3), 4, max_blocks=config.lines, sampling=sampling)
    systems[BLOCK] = block, verifiers[best][1].probe, verifiers[best][0]
    written = []
    for system, (sampler, judge, layer) in systems.items():
        for run in range(config.runs):
            order = np.random.default_rng([config.seed, 2, run]).permutation(config.known_names)[: config.names]
            names = np.repeat(order, config.repeats).tolist()
            tokens, queries = writer.write(names, sampler, judge, stream=f"test/{run}", layer=layer)
            for name, text, cost in zip(names, tokens, queries, strict=True):
                said = "".join(lines.pieces_of(text[lines.PROMPT :]))
                written.append({"setting": system, "run": run, "name": name, "text": said, "queries": int(cost)})
    return protocol.rows(written, config.lines)


def claims(
    found: Mapping[str, Row], verifiers: Mapping[str, tuple[int | None, Any]], thresholds: Sequence[float]
) -> list[Claim]:
    """What should come out, of the layer with the best validation accuracy; limits were set before a run at size."""
    best = max(verifiers, key=lambda name: verifiers[name][1].accuracy)
    plain, block, random = (found[name] for name in (PLAIN, BLOCK, RANDOM))

    def errors_apart(one: Row, other: Row) -> float:
        spread = np.hypot(one.accuracy[1], other.accuracy[1])
        return float((one.accuracy[0] - other.accuracy[0]) / spread) if spread else float("nan")

    told = []
    for threshold in thresholds:
        ours = found[_named(best, threshold)]
        gain, cost = errors_apart(ours, plain), ours.queries[0] / plain.queries[0]
        at = f"at threshold {threshold}"
        told += [
            Claim(f"Acc_distinct with backtracking minus without, in standard errors, {at}", gain, ">", 2.0),
            Claim(f"queries of backtracking / of plain sampling, {at}", cost, "<=", 1.1),
        ]
    return told + [
        Claim("queries of block best of 4 / of plain sampling", block.queries[0] / plain.queries[0], ">=", 2.5),
        Claim(
            "Acc_distinct with a random verifier minus without one, in standard errors, absolute",
            *(abs(errors_apart(random, plain)), "<=", 2.0),
            reason="what is erased is rewritten greedily, and so is often a test case that another text has, too",
        ),
    ]


def mini(config: MiniConfig) -> dict[str, Any]:
    """The whole experiment: losses, accuracies of the verifiers, rows, and claims, as JSON values."""
    params, losses = train_language_model(config)
    writer = Writer(config, params)
    verifiers = train_verifiers(writer)
    found = compare(writer, verifiers)
    return {
        "parameters": config.model.parameter_count(),
        "losses": losses,
        "verifiers": {
            name: {"accuracy": of.accuracy, "examples": of.training_examples + of.validation_examples}
            for name, (_, of) in verifiers.items()
        },
        "rows": {name: vars(row) for name, row in found.items()},
        "claims": [claim.to_dict() for claim in claims(found, verifiers, config.thresholds)],
    }
