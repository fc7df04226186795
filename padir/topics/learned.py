"""Trains the one-layer model as the thesis's figures and tables do, and measures what it has stored."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.topics.attention_loss import CONVENTIONS, Landscape
from padir.topics.block_statistics import (
    DIFFERENT,
    KINDS,
    SAME_TOPIC,
    SAME_WORD,
    attention_of_counts,
    matrix_statistics,
    membership,
    pair_masks,
)
from padir.topics.masked_language_modelling import CROSS_ENTROPY, LOSSES, SQUARED, Rows, batch_of, masked
from padir.topics.optima import Constants, block_value, diagonal_value, embedding_bias, least_squares, topic_gap
from padir.topics.settings import TopicsConfig, every
from padir.topics.single_layer import Parameters, scores
from padir.topics.topic_model import TopicModel, counts_of, sample_lda
from padir.topics.training import (
    ADAM,
    SGD,
    FewTopicsBatches,
    TopicTraining,
    Trained,
    random_parameters,
    rows_loss,
    train,
)
from padir.types import Array

# Standard deviation of first matrices, where the thesis's outcome does not depend on it.
_SCALE = 0.01
# That of embeddings. Their product, not they themselves, is what logits depend on: near 0 its gradient is 0.
_EMBEDDING_SCALE = 0.05
# Topics whose words are drawn.
_DRAWN_TOPICS = 5
# Kinds of `all_trained` that say where the gain of the whole comes from.
PARTS_OF_THE_WHOLE = ("all but attention", "attention and value")
# Documents that the least-squares solution is fitted to.
_FITTED = 20_000

Data = dict[str, Any]


def members_of(model: TopicModel) -> np.ndarray:
    """The topics of each token, [V, T] bool; MASK has none."""
    topics = [np.flatnonzero(row) for row in model.indicators()]
    return membership(topics, model.vocabulary)


def compact(matrix: np.ndarray, model: TopicModel) -> Data:
    """The part of a matrix [V, V] that belongs to MASK and the first topics, in thousandths of its largest entry."""
    size = 1 + min(_DRAWN_TOPICS, model.topics) * model.words_per_topic
    part = matrix[:size, :size]
    scale = float(np.abs(part).max()) or 1.0
    return {"scale": scale, "thousandths": np.rint(1000.0 * part / scale).astype(int).tolist()}


def value_matrices(config: TopicsConfig) -> Data:
    """Figures 2.2 and 2.5: W^V under uniform attention, for both losses and optimizers, with and without L2."""
    model, members = config.model, members_of(config.model)
    shapes = {"value": (model.vocabulary, model.vocabulary)}

    def run(loss: str, optimizer: str, l2: float, steps: int) -> Data:
        training = config.of_figures(loss, optimizer, l2, steps)
        start = functools.partial(random_parameters, shapes=shapes, scale=_SCALE)
        trained = train(config.seeds, start, ["value"], training, config.batches)
        matrices = [trained.of(index).value for index in range(config.num_seeds)]
        return {
            **{"loss": loss, "optimizer": optimizer, "l2": l2, "steps": steps},
            "seeds": [_of_matrix(matrix, config, members) for matrix in matrices],
            "last_loss": trained.history["loss"][:, -1].tolist(),
            "matrix": compact(matrices[0], model),
        }

    theorem, fitted = block_value(model, config.masking), _fitted(config)
    return {
        "runs": [
            run(*settings, config.value_steps) for settings in itertools.product(LOSSES, (SGD, ADAM), (0.0, config.l2))
        ],
        # SGD is the slowest where the loss is flat.
        "longer": run(SQUARED, SGD, 0.0, 4 * config.value_steps),
        "theorem": _of_matrix(theorem, config, members) | {"matrix": compact(theorem, model)},
        "least_squares": _of_matrix(fitted, config, members) | {"matrix": compact(fitted, model)},
        "model": {"topics": model.topics, "words_per_topic": model.words_per_topic},
        "a": Constants.of(model, config.masking).a,
        "p_c": config.masking.p_c,
    }


def _of_matrix(matrix: np.ndarray, config: TopicsConfig, members: np.ndarray) -> dict[str, float]:
    found = matrix_statistics(matrix, members)
    return found | {"gap": float(topic_gap(matrix, config.model).mean()), "column of MASK": float(matrix[1:, 0].mean())}


def _fitted(config: TopicsConfig, seed: int = 7) -> np.ndarray:
    """The least-squares W^V of fresh LDA documents, float64."""
    generator = np.random.default_rng([config.seed, seed])
    documents = sample_lda(generator, config.model, (_FITTED,), config.lengths, config.concentration)
    tokens, chosen = masked(generator, documents, config.model.words, config.masking)
    counts = counts_of(tokens, documents.inside, config.model.vocabulary).astype(float)
    labels = counts_of(documents.words, chosen, config.model.vocabulary).astype(float)
    number = np.maximum(chosen.sum(axis=1, keepdims=True), 1)
    labels /= number
    return least_squares(counts / counts.sum(axis=1, keepdims=True), labels, labels.sum(axis=1))


def two_stages(config: TopicsConfig) -> Data:
    """Figure 2.4: norms of W^K, W^Q and W^V by step; and the same with Adam, which has no stages."""
    size = config.model.vocabulary
    names = ("key", "query", "value")
    shapes = dict.fromkeys(names, (size, size))
    data = {}
    steps = config.stages.steps
    contrast = TopicTraining(CROSS_ENTROPY, ADAM, config.adam_rate, steps, record_every=every(steps))
    for name, training in (("sgd", config.stages), ("adam", contrast)):
        trained = train(
            config.seeds,
            lambda key: random_parameters(key, shapes, config.stages_scale),
            names,
            training,
            config.batches,
        )
        lags = [_lag(trained, index) for index in range(config.num_seeds)]
        data[name] = {
            "steps": trained.steps.tolist(),
            "norms": {each: trained.history[each].tolist() for each in names},
            "loss": trained.history["loss"].tolist(),
            "lags": lags,
        }
    return data


def _lag(trained: Trained, seed: int) -> int:
    """Steps from when ‖W^V‖ is at 80% of its end until ‖W^K‖ is at 20% of its own."""

    def reached(name: str, share: float) -> int:
        norms = trained.history[name][seed]
        return int(trained.steps[np.argmax(norms >= share * norms[-1])])

    return reached("key", 0.2) - reached("value", 0.8)


def held_out_counts(config: TopicsConfig) -> np.ndarray:
    """Token counts of documents without masks, on which attention is measured, [held_out, V]."""
    generator = np.random.default_rng([config.seed, 11])
    documents = sample_lda(generator, config.model, (config.held_out,), config.lengths, config.concentration)
    return counts_of(documents.words, documents.inside, config.model.vocabulary)


def joint(config: TopicsConfig) -> Data:
    """Table 2.1 and Figure 2.6: W^K, W^Q, W^V and biases trained together, cross-entropy, Adam and SGD."""
    model, members, counts = config.model, members_of(config.model), held_out_counts(config)
    size = model.vocabulary
    shapes = dict.fromkeys(("key", "query", "value"), (size, size))
    shapes |= dict.fromkeys(("prediction_bias", "key_bias", "query_bias", "value_bias"), (size,))
    runs = {}
    for name, training in config.of_joint().items():
        trained = train(
            config.seeds, lambda key: random_parameters(key, shapes, _SCALE), tuple(shapes), training, config.batches
        )
        models = [trained.of(index) for index in range(config.num_seeds)]
        runs[name] = {
            "attention": [_attention(each, counts, members) for each in models],
            "value": [_of_matrix(each.value, config, members) for each in models],
            "last_loss": trained.history["loss"][:, -1].tolist(),
            "matrix": compact(models[0].value, model),
        }
    return {"runs": runs, "model": {"topics": model.topics, "words_per_topic": model.words_per_topic}}


def _attention(parameters: Parameters, counts: np.ndarray, members: np.ndarray) -> dict[str, float]:
    with jax.enable_x64(True):
        found = np.asarray(scores(parameters))
    return attention_of_counts(found, counts, members).means()


def second_stage(config: TopicsConfig) -> Data:
    """Table 2.2: attention alone, under a frozen W^V that is optimal in stage 1; on LDA documents and on τ = 3."""
    model, members, counts = config.model, members_of(config.model), held_out_counts(config)
    size = model.vocabulary
    few = FewTopicsBatches(model, 3, config.masking, max(1, config.batch_size // 5))
    exact = [Landscape(model.topics, model.words_per_topic, 3, config.masking, each) for each in CONVENTIONS]
    data: Data = {
        "optima": {
            "gamma": [landscape.optimal_gamma()[0] for landscape in exact],
            "beta": [landscape.optimal_pair()[1] for landscape in exact],
        }
    }
    for value, matrix in (("diagonal", diagonal_value), ("blocks", block_value)):
        frozen = np.asarray(matrix(model, config.masking), np.float32)
        for source, batches in (("lda", config.batches), ("few_topics", few)):

            def start(key, frozen=frozen):
                shapes = {"key": (size, size), "query": (size, size)}
                return random_parameters(key, shapes, _SCALE)._replace(value=jnp.asarray(frozen))

            trained = train(config.seeds, start, ["key", "query"], config.of_second(), batches)
            models = [trained.of(index) for index in range(config.num_seeds)]
            data.setdefault(source, {})[value] = {
                "attention": [_attention(each, counts, members) for each in models],
                "weights": [relative_weights(each, members) for each in models],
                "last_loss": trained.history["loss"][:, -1].tolist(),
            }
    return data


def relative_weights(parameters: Parameters, members: np.ndarray) -> dict[str, float]:
    """α, β and γ of a model (Assumption 2.1.2), by the mean of exp(S) over pairs of words of each kind."""
    with jax.enable_x64(True):
        found = np.asarray(scores(parameters))
    words = np.arange(len(found))
    masks = pair_masks(words, words, members)
    exponentials = np.exp(found - found.max())
    mean = {kind: float(exponentials[masks[kind]].mean()) for kind in KINDS}
    alpha, beta = (mean[kind] / mean[DIFFERENT] for kind in (SAME_TOPIC, SAME_WORD))
    v = int(members.sum(axis=0)[0])
    return {"alpha": alpha, "beta": beta, "gamma": ((v - 1) * alpha + beta) / v}


def _held_out_rows(config: TopicsConfig) -> Rows:
    generator = np.random.default_rng([config.seed, 13])
    documents = sample_lda(generator, config.model, (config.held_out,), config.lengths, config.concentration)
    tokens, chosen = masked(generator, documents, config.model.words, config.masking)
    return batch_of(documents, tokens, chosen, config.model.vocabulary).rows()


def all_trained(config: TopicsConfig) -> Data:
    """Figure 2.1, and how much less is learnt if only embeddings, or only W^V, are trained; losses are held out."""
    model, members = config.model, members_of(config.model)
    size = model.vocabulary
    square, whole = (size, size), dict.fromkeys(("embedding", "key", "query", "value"), (size, size))
    whole |= dict.fromkeys(("prediction_bias", "key_bias", "query_bias", "value_bias"), (size,))
    bias = jnp.zeros(size).at[1:].set(embedding_bias(model, config.masking))
    kinds = {
        "all": (lambda key: random_parameters(key, whole, _EMBEDDING_SCALE), tuple(whole)),
        "embeddings": (
            lambda key: random_parameters(key, {"embedding": square}, _EMBEDDING_SCALE)._replace(prediction_bias=bias),
            ("embedding",),
        ),
        "value": (lambda key: random_parameters(key, {"value": square}, _SCALE), ("value",)),
    }
    # What the whole has beyond either part: attention, or all else.
    of_attention = [name for name in whole if name.startswith(("key", "query"))]
    without = {name: shape for name, shape in whole.items() if name not in of_attention}
    rest = {name: whole[name] for name in (*of_attention, "value", "prediction_bias", "value_bias")}
    kinds |= {
        "all but attention": (lambda key: random_parameters(key, without, _EMBEDDING_SCALE), tuple(without)),
        "attention and value": (lambda key: random_parameters(key, rest, _SCALE), tuple(rest)),
    }
    with jax.enable_x64(False):
        rows = _held_out_rows(config)
    runs = []
    for loss, l2, kind in itertools.product(LOSSES, (0.0, config.l2), kinds):
        start, names = kinds[kind]
        if kind in PARTS_OF_THE_WHOLE and (loss, l2) != (SQUARED, 0.0):
            continue
        for optimizer in (ADAM, SGD) if kind == "all" and not l2 else (ADAM,):
            training = _of_all(config, loss, optimizer, l2)
            trained = train(config.seeds, start, names, training, config.batches)
            run = {"kind": kind, "loss": loss, "optimizer": optimizer, "l2": l2}
            run["held_out"] = _held_out_losses(trained, rows, loss)
            if kind in ("all", "embeddings"):
                embeddings = [trained.of(index).embedding for index in range(config.num_seeds)]
                grams = [embedding.T @ embedding for embedding in embeddings]
                run["embeddings"] = [matrix_statistics(gram, members) for gram in grams]
                run["matrix"] = compact(grams[0], model)
            if kind == PARTS_OF_THE_WHOLE[1]:
                # Whether it is diagonal or in blocks decides what attention is best (Table 2.2).
                values = [trained.of(index).value for index in range(config.num_seeds)]
                run["value"] = [_of_matrix(value, config, members) for value in values]
                run["value_matrix"] = compact(values[0], model)
            runs.append(run)
    return {"runs": runs, "model": {"topics": model.topics, "words_per_topic": model.words_per_topic}}


def _held_out_losses(trained: Trained, rows: Rows, loss: str) -> list[float]:
    """The loss of each seed."""
    with jax.enable_x64(False):
        return np.asarray(_losses(trained.parameters, rows, loss), np.float64).tolist()


@functools.partial(jax.jit, static_argnums=2)
def _losses(parameters: Parameters, rows: Rows, loss: str) -> Array:
    return jax.vmap(lambda each: rows_loss(each, rows, loss))(parameters)


def _of_all(config: TopicsConfig, loss: str, optimizer: str, l2: float) -> TopicTraining:
    """As for W^V alone, but products of three trained matrices bear smaller learning rates of SGD."""
    steps = config.all_steps
    of_sgd = config.sgd_rate / (3.0 if loss == CROSS_ENTROPY else 10.0)
    rate = of_sgd if optimizer == SGD else config.adam_rate
    return TopicTraining(loss, optimizer, rate, steps, l2, record_every=every(steps))


def losses_of(data: Mapping[str, Any], kind: str, loss: str, l2: float, optimizer: str = ADAM) -> Sequence[float]:
    """The held-out losses of one kind of run of `all_trained`, by seed."""
    key = (kind, loss, l2, optimizer)
    return next(
        run["held_out"] for run in data["runs"] if (run["kind"], run["loss"], run["l2"], run["optimizer"]) == key
    )
