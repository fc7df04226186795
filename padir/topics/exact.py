"""What can be computed without training a network on samples: optima, attention's landscapes, length correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from padir.topics.attention_loss import (
    BLOCKS,
    CONVENTIONS,
    DIAGONAL,
    LITERAL,
    Intervals,
    Landscape,
    enumerated,
    limits,
    loss_limits,
)
from padir.topics.block_statistics import Means, attention_statistics, matrix_statistics, membership
from padir.topics.optima import (
    Constants,
    block_value,
    diagonal_value,
    embedding_bias,
    excess,
    hessian_rank,
    lemma_member,
    lemma_residual,
    minimum_norm,
    ridge,
    same_topic,
    topic_gap,
    train_embeddings,
)
from padir.topics.settings import TopicsConfig
from padir.topics.topic_model import Lengths, TopicModel, sample_few_topics

Data = dict[str, Any]
# (T, τ, v) whose documents are enumerated.
ENUMERATED = ((5, 2, 3), (6, 3, 2), (4, 3, 2), (6, 1, 3), (10, 3, 10))
# That of Theorem 2.1.1's embeddings, and of the noise that is added to optima.
SMALL = (5, 2, 3)
# (T, v, τ) of Theorems 2.1.3 and 2.1.5: Figures 2.7 and 2.8, the experiments, and on to the limit.
FIGURE = tuple((100, 300, present) for present in (20, 40, 60, 80))
ATTENTION = (*FIGURE, (10, 10, 3), (10**6, 300, 1000), (10**8, 300, 10_000))
# Sentences after which a random encoder is replaced: one alone has its own accidental likings among few words.
_SENTENCES_OF_AN_ENCODER = 16
# Pairs (α, β) at which formulas are held against enumeration, with T = 4, τ = v = 2.
PAIRS = ((1.0, 1.0), (0.3, 2.0), (5.0, 0.2), (100.0, 7.0), (0.01, 50.0))


def optima(config: TopicsConfig) -> Data:
    """Lemma 2.1.1 and Theorems 2.1.1, 2.1.2 and 2.1.4 on enumerated documents."""
    generator = np.random.default_rng([config.seed, 3])
    data: Data = {"cases": {}}
    for topics, present, v in ENUMERATED:
        model = TopicModel(topics, v)
        best, masking = block_value(model, config.masking), config.masking
        u, within = (generator.standard_normal(shape) for shape in (model.vocabulary, (model.vocabulary, model.words)))
        member = lemma_member(model, masking, u, within)
        noisy = best + 0.01 * generator.standard_normal(best.shape)
        data["cases"][f"T = {topics}, τ = {present}, v = {v}"] = {
            "from_minimum_norm": np.abs(minimum_norm(model, masking, present) - best).max(),
            "from_ridge": np.abs(ridge(model, masking, present, 1e-9) - best).max(),
            "residual": max(lemma_residual(each, model, masking) for each in (best, member)),
            "excess": max(
                excess(each, model, masking, present) for each in (best, member, diagonal_value(model, masking))
            ),
            "excess_with_noise": excess(noisy, model, masking, present),
            "gap_error": np.abs(topic_gap(member, model) * Constants.of(model, masking).a - 1.0).max(),
            "different": best[1, -1],
            "same": best[1, 1],
            "column": best[1, 0],
            "rank": hessian_rank(model, masking, present),
            "words": model.words,
            "topics": topics,
        }
    return data | {"embeddings": _embeddings(config), "value": block_value(TopicModel(4, 3), config.masking)}


def _embeddings(config: TopicsConfig) -> Data:
    """Theorem 2.1.1: trained on the exact loss from several seeds, with and without L2 on W^E."""
    topics, present, v = SMALL
    model, masking = TopicModel(topics, v), config.masking
    constants, members, same = Constants.of(model, masking), membership_of(model), same_topic(model)
    found: Data = {"c_3": constants.c_3, "topics": topics, "words_per_topic": v}
    for name, l2 in (("without L2", 0.0), ("with L2", 1e-4)):
        runs = []
        grams = train_embeddings(
            model, masking, present, seed=config.seed, count=config.exact_seeds, steps=config.exact_steps, l2=l2
        )
        for gram in grams:
            u = -gram[1:, 0] / constants.c_2
            of_topics = u.reshape(topics, v).mean(axis=1)
            runs.append(
                {
                    **matrix_statistics(gram, members),
                    "gap": topic_gap(gram, model),
                    "spread_of_u": np.ptp(of_topics),
                    "mask_error": gram[0, 0] - constants.c_2**2 * u.mean(),
                    "rank": int(np.linalg.matrix_rank(gram, tol=1e-3)),
                    "blocks": [gram[same].min(), gram[same].max()],
                    "excess": excess(gram, model, masking, present, embedding_bias(model, masking)),
                }
            )
        found |= {name: runs, f"gram {name}": grams[0]}
    return found


def membership_of(model: TopicModel) -> np.ndarray:
    """The topics of each token, [V, T] bool; MASK has none."""
    return membership([np.flatnonzero(row) for row in model.indicators()], model.vocabulary)


def attention_optima(config: TopicsConfig) -> Data:
    """Theorems 2.1.3 and 2.1.5: optimal attention in both conventions, and formulas against enumeration."""
    data: Data = {"cases": [], "limits": limits(config.masking), "enumerated": []}
    for topics, v, present in ATTENTION:
        bounds = Intervals.of(v, config.masking)
        case: Data = {"T": topics, "v": v, "τ": present, "bounds": vars(bounds)}
        for convention in CONVENTIONS:
            landscape = Landscape(topics, v, present, config.masking, convention)
            gamma, loss = landscape.optimal_gamma()
            alpha, beta, of_diagonal = landscape.optimal_pair()
            at_root = float(landscape.blocks(np.sqrt(present * topics)))
            case[convention] = {
                **{"gamma": gamma, "loss": loss, "loss_at_root": at_root},
                **{"alpha": alpha, "beta": beta, "diagonal_loss": of_diagonal},
            }
        data["cases"].append(case)
    data["loss_limits"] = loss_limits(ATTENTION[-1][1], config.masking)
    landscape = Landscape(4, 2, 2, config.masking, LITERAL)
    for alpha, beta in PAIRS:
        gamma = landscape.gamma(alpha, beta)
        of_blocks = enumerated(landscape, alpha, beta, BLOCKS)
        data["enumerated"].append(
            {
                **{"alpha": alpha, "beta": beta},
                "blocks": of_blocks - landscape.blocks(gamma),
                "diagonal": enumerated(landscape, alpha, beta, DIAGONAL) - landscape.diagonal(alpha, beta),
                "same_gamma": of_blocks - enumerated(landscape, gamma, gamma, BLOCKS),
            }
        )
    return data | {"misprints": misprints(config)}


def misprints(config: TopicsConfig) -> Data:
    """Formulas as the thesis prints them, at T = 100, v = 300, τ = 20, and γ = 50."""
    landscape = Landscape(100, 300, 20, config.masking)
    (p_1, p_2), gamma, p_0 = landscape.frequencies, 50.0, landscape.constants.p_0
    present, absent = p_1 * 300 * 20, p_2 * 300 * 79
    mass = p_2 * gamma * 300 + present + absent
    return {
        # Shares of what a query of an absent topic sees: its own topic, topics that are present, other absent ones.
        "shares": 1.0,
        "shares_printed": (p_2 * gamma * 300 + present) / mass + absent / (p_1 * gamma * 300 + present + absent),
        # Weights of words, if α = β = 1 and z counts MASK or not, as q does.
        "column_sum": present + p_2 * 300 * 80,
        "p_0": p_0,
        # How much of its attention a query MASK gives to MASKs at α = β = 1 and at α = β = 10, where MASK is the same
        # word as MASK.
        "mask_query": [weight * p_0 / (weight * p_0 + 1.0 - p_0) for weight in (1.0, 10.0)],
    }


def landscapes(config: TopicsConfig) -> Data:
    """Figures 2.7 and 2.8: the loss over α and β on a logarithmic grid."""
    axis = np.logspace(-4.0, 7.0, config.grid)
    data: Data = {"axis": axis, "panels": []}
    for topics, v, present in FIGURE:
        landscape = Landscape(topics, v, present, config.masking)
        alpha, beta = axis[:, None], axis[None, :]
        of_blocks = landscape.blocks(landscape.gamma(alpha, beta))
        of_diagonal = landscape.diagonal(alpha, beta)
        gamma, _ = landscape.optimal_gamma()
        _, best_beta, _ = landscape.optimal_pair()
        data["panels"].append(
            {
                **{"τ": present, "gamma": gamma, "beta": best_beta},
                "blocks": _shown(of_blocks),
                "diagonal": _shown(of_diagonal),
                **_found_on_grid(landscape, axis, of_blocks, of_diagonal),
            }
        )
    return data


def _found_on_grid(landscape: Landscape, axis: np.ndarray, blocks: np.ndarray, diagonal: np.ndarray) -> Data:
    """Where the grid's minima are."""
    first, second = np.unravel_index(blocks.argmin(), blocks.shape)
    return {
        "gamma_on_grid": landscape.gamma(axis[first], axis[second]),
        "beta_on_grid": axis[np.unravel_index(diagonal.argmin(), diagonal.shape)[1]],
        "least_blocks": blocks.min(),
        "least_diagonal": diagonal.min(),
    }


def _shown(losses: np.ndarray) -> np.ndarray:
    """At most 56 points of each axis, rounded, for the JSON file and the picture."""
    step = max(1, (len(losses) - 1) // 55)
    return np.round(losses[::step, ::step], 5)


def length_correction(config: TopicsConfig) -> Data:
    """Attention of an encoder with random weights: it knows nothing of topics, and the ratio must be 1.

    Documents with fewer topics are shorter here. Their positions attend more to each, and have the same topic more
    often, so that raw weights seem to know topics.
    """
    generator = np.random.default_rng([config.seed, 5])
    model = config.model
    members = membership_of(model)
    found = {}
    for name, related in (("lengths by topics", True), ("lengths at random", False)):
        sentences = []
        for index in range(config.sentences):
            if index % _SENTENCES_OF_AN_ENCODER == 0:
                encoder = random_encoder(generator, model.vocabulary)
            present = 1 + index % 4 if related else int(generator.integers(1, 5))
            length = 25 * present if related else int(generator.integers(25, 101))
            documents = sample_few_topics(generator, model, present, Lengths(length, length), 1)
            tokens = documents.words[0]
            sentences.append((tokens, encoder(tokens)))
        raw, corrected = (attention_statistics(sentences, members, correct) for correct in (False, True))
        found[name] = {"raw": _ratios(raw), "corrected": _ratios(corrected)}
    return found


def _ratios(means: Means) -> Data:
    return {"ratio": means.ratio(), "means": means.means()}


def random_encoder(
    generator: np.random.Generator, vocabulary: int, layers: int = 4, heads: int = 4, width: int = 64
) -> Callable[[np.ndarray], np.ndarray]:
    """An encoder with random weights: attention, residual and normalisation in each layer; position embeddings.

    Args:
      generator: draws the weights.
      vocabulary: number of words.
      layers, heads, width: its size.

    Returns:
      A function from tokens [N] to attention [layers, heads, N, N] of queries and keys.
    """
    size = width // heads
    embedding = generator.standard_normal((vocabulary, width))
    positions = generator.standard_normal((1024, width))
    maps = generator.standard_normal((layers, 3, heads, width, size)) / np.sqrt(width)
    outputs = generator.standard_normal((layers, heads, size, width)) / np.sqrt(width)

    def encode(tokens: np.ndarray) -> np.ndarray:
        hidden, found = _normalised(embedding[tokens] + positions[: len(tokens)]), []
        for (to_query, to_key, to_value), output in zip(maps, outputs, strict=True):
            logits = (hidden @ to_query) @ (hidden @ to_key).transpose(0, 2, 1) / np.sqrt(size)
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            found.append(weights)
            hidden = _normalised(hidden + (weights @ (hidden @ to_value) @ output).sum(axis=0))
        return np.stack(found)

    return encode


def _normalised(hidden: np.ndarray) -> np.ndarray:
    centred = hidden - hidden.mean(axis=-1, keepdims=True)
    return centred / centred.std(axis=-1, keepdims=True)
