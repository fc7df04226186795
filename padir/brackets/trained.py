"""The parts of the experiment that train: B6 to B10 and B13, in float32."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir import rng
from padir.brackets import accuracy, balance
from padir.brackets.attention_variation import dirichlet_baseline, stack_shares, variation
from padir.brackets.language import DyckLanguage, text_of, tokens_of
from padir.brackets.settings import BracketsConfig, Variation
from padir.brackets.thesis import TEST_PREFIX
from padir.brackets.training import BracketTraining, draw, keys_of, train
from padir.brackets.transformer import BracketNetwork, Params, apply, rank_matrices, start_of
from padir.types import Array

# Seeds whose attention is drawn.
_DRAWN = 4
# Sentences of Table 2.6, and brackets of each; with the start token they have 19 positions.
_SENTENCES, _SENTENCE_LENGTH = 40, 18


def pairs_of_runs(config: BracketsConfig, data: str) -> dict[str, Any]:
    """B6, B9, B10: networks with and without the contrastive term, from the same parameters and on the same data.

    Args:
      config: the settings.
      data: 'complete' or 'prefixes'.
    """
    language, seed = config.language, config.seed
    plain = dataclasses.replace(config.training, data=data, contrastive=0.0)
    keys = keys_of(seed, f"pairs/{data}", config.seeds)
    found: dict[str, Any] = {"data": data, "weight": config.contrastive, "steps": plain.steps}
    for name, weight in (("standard", 0.0), ("contrastive", config.contrastive)):
        training = dataclasses.replace(plain, contrastive=weight)
        params, losses = train(config.network, language, training, keys)
        found[name] = _measured(config, config.network, training, params, losses)
        if name == "standard":
            found["attention"] = _attention(language, config.network, params, config.seeds)
    if data == "complete":
        network = dataclasses.replace(config.network, uniform=True)
        params, losses = train(network, language, plain, keys_of(seed, "uniform", config.uniform_seeds))
        found["uniform"] = _measured(config, network, plain, params, losses)
    found["comparison"] = compared(found["standard"], found["contrastive"])
    return found


def _measured(
    config: BracketsConfig, network: BracketNetwork, training: BracketTraining, params: Params, losses: Array
) -> dict[str, Any]:
    """Accuracies, β and last losses of networks [S], as lists."""
    language = config.language
    here = accuracy.in_distribution(
        network, language, training, params, rng.stream(config.seed, "brackets/test"), config.test_rows
    )
    key = rng.stream(config.seed, "brackets/long")
    long = accuracy.on_long_prefixes(network, language, params, key, config.long_rows)
    count = len(np.asarray(losses))
    betas = [
        balance.violation(language, *rank_matrices(network, language, _of_seed(params, index))).beta
        for index in range(count)
    ]
    return {
        "closing": np.asarray(here.closing).tolist(),
        "every": np.asarray(here.every).tolist(),
        "long_closing": np.asarray(long.closing).tolist(),
        "long_every": np.asarray(long.every).tolist(),
        "beta": betas,
        "loss": np.asarray(losses)[:, -100:].mean(axis=1).tolist(),
    }


def _of_seed(params: Params, index: int) -> Params:
    """One network's parameters."""
    return jax.tree.map(lambda leaf: leaf[index], params)


def compared(standard: dict[str, Any], contrastive: dict[str, Any]) -> dict[str, Any]:
    """Pairs of runs: ratios of β, differences of long accuracies with 95% intervals, and rank correlations."""
    # Here, because it takes more than a second to import, and every command imports this module.
    from scipy.stats import spearmanr

    ratios = np.array(contrastive["beta"]) / np.array(standard["beta"])
    found: dict[str, Any] = {"beta_ratio": float(np.median(ratios))}
    for which in ("closing", "every"):
        gains = np.array(contrastive[f"long_{which}"]) - np.array(standard[f"long_{which}"])
        low, high = _interval(gains)
        betas = standard["beta"] + contrastive["beta"]
        accuracies = standard[f"long_{which}"] + contrastive[f"long_{which}"]
        found[which] = {
            "higher": int((gains > 0).sum()),
            "mean_gain": float(gains.mean()),
            "interval": [low, high],
            "correlation": float(spearmanr(betas, accuracies).statistic),
        }
    return found


def _interval(gains: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean by Student's t; NaN for a single one."""
    if len(gains) < 2:
        return float("nan"), float("nan")
    from scipy.stats import t

    half = t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
    return float(gains.mean() - half), float(gains.mean() + half)


def patterns_of(network: BracketNetwork, language: DyckLanguage, params: Params, tokens: np.ndarray) -> np.ndarray:
    """Attention of networks [S] on sequences [N, L] without the start token: [S, N, layers, L + 1, L + 1]."""
    ranks = jnp.asarray(language.parse(tokens).ranks, jnp.int32)
    inputs = jnp.asarray(start_of(tokens), jnp.int32)
    found = jax.lax.map(lambda each: apply(network, language, each, inputs, ranks)[1], params)
    return np.asarray(found, np.float64)


def _attention(language: DyckLanguage, network: BracketNetwork, params: Params, seeds: int) -> dict[str, Any]:
    """Attention of networks [S] on the test prefix: the last layer's variation, likeness to a stack, some patterns."""
    tokens = np.array([tokens_of(TEST_PREFIX)])
    tops = language.parse(tokens).tops[0]
    patterns = patterns_of(network, language, params, tokens)[:, 0]
    mass, argmax = stack_shares(patterns[:, -1], tops)
    layers = range(patterns.shape[1])
    return {
        "prefix": TEST_PREFIX,
        "tops": tops.tolist(),
        "baseline": dirichlet_baseline(len(tops)),
        "variation": [variation(patterns[:, layer]) if seeds > 1 else None for layer in layers],
        "stack_mass": mass,
        "stack_argmax": argmax,
        "patterns": np.round(patterns[:_DRAWN, -1], 4).tolist(),
    }


def variations(config: BracketsConfig) -> dict[str, Any]:
    """B7: attention variation of networks of different kinds."""
    language = config.language
    return {"networks": {each.name: _variation(config, language, each) for each in config.variations}}


def _variation(config: BracketsConfig, language: DyckLanguage, each: Variation) -> dict[str, Any]:
    keys = keys_of(config.seed, f"variation/{each.name}", each.seeds)
    params, losses = train(each.network, language, each.training, keys)
    here = accuracy.in_distribution(
        each.network, language, each.training, params, rng.stream(config.seed, "brackets/test"), config.test_rows
    )
    return {
        "settings": dataclasses.asdict(each),
        "closing": np.asarray(here.closing).tolist(),
        "loss": np.asarray(losses)[:, -100:].mean(axis=1).tolist(),
        **_attention(language, each.network, params, each.seeds),
    }


def architectures(config: BracketsConfig) -> dict[str, Any]:
    """B8, Table 2.6: attention variation by layer, mean and standard deviation over sentences.

    'shown' has the attention of the first of the deepest networks on the first sentence, by layer (Fig 2.18).
    """
    rows, shown = {}, {}
    for types, depth, layers in config.architectures:
        language = dataclasses.replace(config.language, types=types, depth=depth)
        network = dataclasses.replace(config.architecture_network, layers=layers)
        training = config.architecture_training
        name = f"{types},{depth},{layers}"
        params, _ = train(network, language, training, keys_of(config.seed, f"table/{name}", config.architecture_seeds))
        key = rng.stream(config.seed, "brackets/test")
        here = accuracy.in_distribution(network, language, training, params, key, config.test_rows)
        sentences = _sentences(config, language)
        patterns = patterns_of(network, language, params, sentences)
        by_layer = np.array([[variation(patterns[:, n, layer]) for n in range(_SENTENCES)] for layer in range(layers)])
        rows[name] = {
            "closing": np.asarray(here.closing).tolist(),
            "mean": by_layer.mean(axis=1).tolist(),
            "sd": by_layer.std(axis=1, ddof=1).tolist(),
        }
        if not shown or layers > len(shown["patterns"]):
            shown = {
                "name": name,
                "prefix": text_of(sentences[0]),
                "tops": language.parse(sentences[:1]).tops[0].tolist(),
                "patterns": np.round(patterns[0, 0], 4).tolist(),
            }
    baseline = dirichlet_baseline(_SENTENCE_LENGTH + 1)
    return {"rows": rows, "shown": shown, "baseline": baseline, "seeds": config.architecture_seeds}


def _sentences(config: BracketsConfig, language: DyckLanguage) -> np.ndarray:
    """Complete words of one length: [n, length] int."""
    training = BracketTraining(longest=_SENTENCE_LENGTH)
    # One in nine has the greatest length.
    batch = draw(training, language, rng.stream(config.seed, "brackets/sentences"), 40 * _SENTENCES)
    whole = np.asarray(batch.tokens)[np.asarray(batch.lengths) == _SENTENCE_LENGTH]
    return whole[:_SENTENCES, 1:]


def copying(config: BracketsConfig) -> dict[str, Any]:
    """B13: networks that copy, and what uniform attention changes after training."""
    language = config.language
    rows = {}
    for layers in config.copying_layers:
        network = dataclasses.replace(config.copying_network, layers=layers)
        training = dataclasses.replace(config.copying_training, task="copy")
        params, _ = train(network, language, training, keys_of(config.seed, f"copy/{layers}", config.copying_seeds))
        batch = draw(training, language, rng.stream(config.seed, "brackets/copy"), config.test_rows)
        asked = np.asarray(batch.predicts)

        def share_right(uniform_layers: tuple[int, ...], network=network, params=params, batch=batch, asked=asked):
            """Share of tokens that are copied, of each network [S]."""

            def measure(each: Params) -> Array:
                logits, _ = apply(network, language, each, batch.tokens, batch.ranks, uniform_layers)
                return logits[:, 1:].argmax(axis=-1) == batch.tokens[:, 1:] - 1

            right = np.asarray(jax.jit(lambda all: jax.lax.map(measure, all))(params))
            return right[:, asked].mean(axis=1)

        trained = share_right(())
        tokens = np.array([tokens_of(TEST_PREFIX)])
        patterns = patterns_of(network, language, params, tokens)[:, 0]
        rows[str(layers)] = {
            "accuracy": trained.tolist(),
            "uniform": [share_right((layer,)).tolist() for layer in range(layers)],
            "all_uniform": share_right(tuple(range(layers))).tolist(),
            "structure": [[_structure(pattern) for pattern in of_seed] for of_seed in patterns],
            "patterns": np.round(patterns[0], 4).tolist(),
        }
    return {"prefix": TEST_PREFIX, "rows": rows}


def _structure(pattern: np.ndarray) -> float:
    """How far a pattern [L, L] is from uniform: the mean over queries of the total variation distance, 0 to 1."""
    seen = np.tri(len(pattern))
    return float(np.abs(pattern - seen / seen.sum(axis=1, keepdims=True)).sum(axis=1).mean() / 2)
