"""The parts of the experiment that need no training: claims B1 to B5 of constructed weights, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from padir import rng
from padir.brackets import balance, sequences
from padir.brackets.attention_variation import dirichlet_baseline, stack_shares, variation
from padir.brackets.construction import Construction, UniformModel, counts_of
from padir.brackets.language import DyckLanguage, text_of, tokens_of
from padir.brackets.lemmas import norm_c
from padir.brackets.settings import BracketsConfig
from padir.brackets.thesis import TEST_PREFIX
from padir.brackets.transformer import start_of

# Draws that each sampler is held against exact probabilities with.
_DRAWS = 20_000
# Lengths of the uniform model's prefixes; the last is long.
_UNIFORM_LENGTHS = (10, 100, 1000, 10_000, 100_000)


def generator_of(config: BracketsConfig, name: str) -> np.random.Generator:
    """A generator for one use, which the base seed and the name decide."""
    return np.random.default_rng(np.asarray(rng.stream(config.seed, f"brackets/{name}")._base_array))


def distribution(config: BracketsConfig) -> dict[str, Any]:
    """B1: sums of (2.39), numbers of prefixes, and samplers held against exact probabilities."""
    language, lengths = config.language, range(1, 9)
    every = {length: language.prefixes(length) for length in lengths}
    tokens = language.sample(generator_of(config, "sampler"), _DRAWS, 6)
    key = rng.stream(config.seed, "brackets/jax_sampler")
    drawn = sequences.prefixes(language, key, _DRAWS, 6)
    words = sequences.complete(language, key, _DRAWS, 8)
    eight = np.asarray(words.tokens)[np.asarray(words.lengths) == 8][:, 1:]
    complete = every[8][language.parse(every[8]).depths[:, -1] == 0]
    parsed = [language.parse(of) for of in (tokens, np.asarray(drawn.tokens)[:, 1:], eight)]
    return {
        "sums": [float(language.probabilities(of).sum()) for of in every.values()],
        "prefixes": [len(of) for of in every.values()],
        "by_depth": [_number_of_prefixes(language, length) for length in lengths],
        "invalid": float(sum((~of.valid[:, -1]).sum() for of in parsed)),
        "not_complete": float((parsed[2].depths[:, -1] != 0).sum()),
        "p_values": {
            "prefixes, NumPy": _p_value(language, every[6], tokens),
            "prefixes, JAX": _p_value(language, every[6], np.asarray(drawn.tokens)[:, 1:]),
            "complete words, JAX": _p_value(language, complete, eight),
        },
    }


def _number_of_prefixes(language: DyckLanguage, length: int) -> int:
    """By counting paths of depths: k ways up, one down."""
    ways = np.zeros(language.depth + 1, int)
    ways[0] = 1
    for _ in range(length):
        ways = np.append(0, language.types * ways[:-1]) + np.append(ways[1:], 0)
    return int(ways.sum())


def _p_value(language: DyckLanguage, every: np.ndarray, drawn: np.ndarray) -> float:
    """p-value of χ² for draws from (2.39), restricted to these prefixes; rare ones are taken together."""
    places = language.tokens ** np.arange(every.shape[1])
    codes, of_drawn = every @ places, drawn @ places
    order = np.argsort(codes)
    observed = np.bincount(np.searchsorted(codes[order], of_drawn), minlength=len(every))
    chances = language.probabilities(every)[order]
    expected = chances / chances.sum() * len(drawn)
    rare = expected < 5
    if rare.any():
        observed, expected = (np.append(of[~rare], of[rare].sum()) for of in (observed, expected))
    # Here, because it takes more than a second to import, and every command imports this module.
    from scipy.stats import chisquare

    return float(chisquare(observed, expected).pvalue)


def _random_prefixes(config: BracketsConfig) -> dict[str, np.ndarray]:
    """Long prefixes of different lengths, as tokens of one length: all their own prefixes are checked, too."""
    generator, few = generator_of(config, "long"), max(1, config.long_prefixes // 30)
    sizes = {"500": (config.long_prefixes, 500), "5000": (few, 5000)}
    return {name: config.language.sample(generator, *size) for name, size in sizes.items()}


def constructed(config: BracketsConfig) -> dict[str, Any]:
    """B2: errors of random balanced layers with the theorem's values, by the standard deviation of their weights."""
    language = config.language
    texts = {str(length): language.prefixes(length) for length in range(1, config.enumerated + 1)}
    texts |= _random_prefixes(config)
    found: dict[str, Any] = {}
    for scale in config.scales:
        logits, gaps = balance.random_balanced(language, generator_of(config, f"balanced/{scale}"), scale)
        made = Construction(language, logits, gaps)
        row = {"prefixes": 0, "asked": 0, "errors": 0, "table": 0.0, "mlp": 0.0}
        row |= {"beta": balance.violation(language, logits, made.values).beta, "margin": made.margin()}
        for length, tokens in texts.items():
            # Of enumerated prefixes the last position is new; of long ones those from length 400 on.
            first = int(length) if int(length) <= config.enumerated else 400
            for rows in np.array_split(tokens, max(1, tokens.size // 100_000)):
                _add(row, made, language, rows, first)
        found[str(scale)] = row
    return found


def _add(row: dict[str, Any], made: Construction, language: DyckLanguage, tokens: np.ndarray, first: int) -> None:
    """Adds errors of a layer on prefixes [N, L], at positions from `first` on."""
    parsed = language.parse(tokens)
    counts = counts_of(language, parsed.ranks)[:, first:]
    ranks, depths, tops = parsed.ranks[:, first:], parsed.depths[:, first:], parsed.top_types[:, first:]
    exact = language.next_probabilities(depths, tops)
    read = made.top_types(made.output(counts, ranks), ranks)
    row["prefixes"] += ranks.size
    row["asked"] += int(((depths > 0) & (tokens[:, first - 1 :] % 2 == 0)).sum())
    row["errors"] += int((read != tops).sum())
    row["table"] = max(row["table"], float(np.abs(made.probabilities(counts, ranks) - exact).max()))
    row["mlp"] = max(row["mlp"], float(np.abs(made.mlp_probabilities(counts, ranks) - exact).max()))


def uniform(config: BracketsConfig) -> dict[str, Any]:
    """B4: Corollary 2.2.1's model, layer by layer, and what the start token is for."""
    language = config.language
    model = UniformModel(language)
    errors, wrong = [], 0
    for length in _UNIFORM_LENGTHS:
        drawn = sequences.prefixes(language, rng.stream(config.seed, "brackets/uniform", length), 1, length)
        tokens, depths, tops = (np.asarray(of)[0] for of in (drawn.tokens, drawn.depths, drawn.top_types))
        written = model.probabilities(tokens[1:])
        errors.append(float(np.abs(written - language.next_probabilities(depths, tops)).max()))
        closing = written[:, 1::2].argmax(axis=1)
        wrong += int((closing != tops)[depths > 0].sum())
    depths = np.arange(language.depth + 1.0)
    lengths = np.array([language.depth + 1.0, 1e2, 1e4, 1e6])[:, None, None]
    raw = np.stack([depths, np.ones_like(depths), -depths, -np.ones_like(depths)], axis=-1) / lengths
    directions = model.direction(depths)
    distances = np.linalg.norm(directions[:, None] - directions[None], axis=-1)
    # p = one opening bracket, p ⊕ p = two, up to depth D, where nothing more may open.
    without = UniformModel(language, starts=False)
    text = np.full(language.depth, 1)
    parsed = language.parse(text[None])
    exact = language.next_probabilities(parsed.depths[0, 1:], parsed.top_types[0, 1:])
    written = without.probabilities(text)
    return {
        "lengths": list(_UNIFORM_LENGTHS),
        "errors": errors,
        "wrong": wrong,
        "direction": float(np.abs(norm_c(raw, 0.0) - directions).max()),
        "closest_depths": float(distances[~np.eye(len(depths), dtype=bool)].min()),
        "outputs_without_start": float(np.abs(written - written[0]).max()),
        "exact_without_start": float(np.abs(exact - exact[0]).max()),
    }


def solutions(config: BracketsConfig) -> dict[str, Any]:
    """B5: how much the attention of optimal layers differs, by the standard deviation of their weights."""
    language = config.language
    tokens = np.array([tokens_of(TEST_PREFIX)])
    parsed = language.parse(tokens)
    positions = tokens.shape[1] + 1
    texts = [language.prefixes(length) for length in range(1, 9)]
    found: dict[str, Any] = {
        "prefix": text_of(tokens[0]),
        "tops": parsed.tops[0].tolist(),
        "baseline": dirichlet_baseline(positions),
        "by_scale": {},
    }
    for scale in (0.5, 1.0, 1.5, 3.0, 5.0):
        generator = generator_of(config, f"solutions/{scale}")
        made = [
            Construction(language, *balance.random_balanced(language, generator, scale))
            for _ in range(config.solutions)
        ]
        patterns = np.array([each.attention(parsed.ranks[0]) for each in made])
        row: dict[str, Any] = {"errors": 0, "table": 0.0, "mlp": 0.0, "prefixes": 0, "asked": 0}
        for each in made:
            for of in texts:
                _add(row, each, language, of, of.shape[1])
        shares = stack_shares(patterns, parsed.tops[0])
        found["by_scale"][str(scale)] = {
            "variation": variation(patterns),
            "errors": row["errors"],
            "stack_mass": shares[0],
            "stack_argmax": shares[1],
        }
        if scale == 3.0:
            found["patterns"] = np.round(patterns[:4], 4).tolist()
    return found


def gpt_layer(config: BracketsConfig) -> dict[str, Any]:
    """(2.85): after cancelling, the attention's output shrinks with the length, while X does not."""
    language = config.language
    made = Construction(language, *balance.random_balanced(language, generator_of(config, "gpt"), 1.0))
    lengths = (100, 300, 1000, 3000, 10_000)
    tokens = language.sample(generator_of(config, "gpt/texts"), 50, lengths[-1] + 20)
    parsed = language.parse(tokens)
    norms = []
    for length in lengths:
        # The last closing bracket of depth 1 or more up to there.
        asked = (parsed.depths[:, : length + 1] > 0) & (start_of(tokens)[:, : length + 1] % 2 == 0)
        last = length - asked[:, ::-1].argmax(axis=1)
        rows = np.arange(len(tokens))
        counts = np.array([np.bincount(parsed.ranks[row, : last[row] + 1], minlength=language.ranks) for row in rows])
        weights = counts * np.exp(made.logits[parsed.ranks[rows, last]])
        output = (weights / weights.sum(axis=1, keepdims=True)) @ made.values
        norms.append(float(np.median(np.linalg.norm(output, axis=1))))
    slope = np.polyfit(np.log(lengths), np.log(norms), 1)[0]
    return {"lengths": list(lengths), "norms": norms, "slope": float(slope)}


def violations(config: BracketsConfig) -> dict[str, Any]:
    """B3: accuracy of layers whose balance is violated by noise, by length."""
    language, longest = config.language, max(config.lengths)
    rows: list[dict[str, Any]] = []
    for index in range(config.models):
        generator = generator_of(config, f"violation/{index}")
        logits, gaps = balance.random_balanced(language, generator, 1.0)
        noise = balance.perturbed(language, np.zeros_like(logits), generator, 1.0)
        parsed = language.parse(tokens := language.sample(generator, config.violations, longest))
        last = _last_asked(parsed.depths, tokens, config.lengths)
        counts = _counts_at(language, parsed.ranks, last)
        every = np.arange(len(tokens))[:, None]
        # The same noise for all ε.
        for epsilon in config.epsilons:
            made = Construction(language, logits + epsilon * noise, gaps)
            found = balance.violation(language, made.logits, made.values)
            ranks = parsed.ranks[every, last]
            right = made.top_types(made.output(counts, ranks), ranks) == parsed.top_types[every, last]
            rows.append(
                {
                    "model": index,
                    "epsilon": epsilon,
                    "beta": found.beta,
                    "largest": float((found.sums / found.scales[:, None, None, :]).max()),
                    "accuracy": right.mean(axis=0).tolist(),
                }
            )
    return {"lengths": list(config.lengths), "epsilons": list(config.epsilons), "types": language.types, "rows": rows}


def _last_asked(depths: np.ndarray, tokens: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """The last closing bracket that leaves something open, up to each length: [N, lengths] int.

    Where there is none, the last opening bracket, which every layer gets right.
    """
    asked = (depths > 0) & (start_of(tokens) % 2 == 0)
    opening = start_of(tokens) % 2 == 1
    found = []
    for length in lengths:
        here = np.where(asked[:, : length + 1].any(axis=1)[:, None], asked[:, : length + 1], opening[:, : length + 1])
        found.append(length - here[:, ::-1].argmax(axis=1))
    return np.stack(found, axis=1)


def _counts_at(language: DyckLanguage, ranks: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """How often each rank came up to some positions: [N, L], [N, P] → [N, P, R]."""
    return np.array(
        [
            [np.bincount(row[: at + 1], minlength=language.ranks) for at in of_row]
            for row, of_row in zip(ranks, positions, strict=True)
        ],
        float,
    )
