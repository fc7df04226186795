"""The command's parts, end to end at tiny sizes, and claims from known numbers."""

import dataclasses
import json

import numpy as np
import pytest

from padir.brackets import approximation, exact, exact_claims, run, trained, trained_claims
from padir.brackets.attention_variation import dirichlet_baseline
from padir.brackets.language import DyckLanguage
from padir.brackets.run import learn_dyck
from padir.brackets.settings import EXACT, TRAINED, BracketsConfig, Variation
from padir.brackets.training import BracketTraining
from padir.brackets.transformer import BracketNetwork
from padir.errors import PadirError

MINIMAL = BracketNetwork(width=8, mlp=(8,))
TOKENS = BracketNetwork("tokens", 2, 8, (8,))
SHORT = BracketTraining(longest=18, steps=3, batch_size=4)
CONFIG = BracketsConfig(
    network=MINIMAL,
    training=SHORT,
    copying_network=TOKENS,
    copying_training=SHORT,
    architecture_network=TOKENS,
    architecture_training=SHORT,
    parts=("violation", "complete"),
    seeds=2,
    uniform_seeds=1,
    copying_layers=(1,),
    copying_seeds=1,
    variations=(
        Variation("standard", TOKENS, SHORT, 2),
        Variation("minimal", MINIMAL, SHORT, 2),
    ),
    architectures=((2, 2, 2),),
    architecture_seeds=2,
    test_rows=20,
    long_rows=2,
    enumerated=5,
    long_prefixes=2,
    models=2,
    violations=10,
    epsilons=(0.01, 0.3),
    lengths=(20, 60),
    scales=(0.0, 1.0),
    solutions=3,
    units=(4, 8),
    prunings=2,
    trials=20,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("brackets")
    return folder, learn_dyck(output_dir=str(folder), config=CONFIG, processes=1)


def test_what_it_writes(made):
    folder, results = made
    assert list(results) == ["violation", "complete"]
    for name, result in results.items():
        assert json.loads((folder / f"brackets_{name}.json").read_text(encoding="utf-8")) == result
        assert (folder / f"brackets_{name}.png").read_bytes().startswith(b"\x89PNG")
        assert result["settings"]["seeds"] == 2 and result["quick"] is False
    assert (folder / "brackets_complete_attention.png").exists()


def test_pairs_share_their_seeds_and_are_compared(made):
    found = made[1]["complete"]["data"]
    assert {len(found[name]["beta"]) for name in ("standard", "contrastive")} == {2}
    ratios = np.array(found["contrastive"]["beta"]) / np.array(found["standard"]["beta"])
    assert found["comparison"]["beta_ratio"] == pytest.approx(np.median(ratios), rel=1e-6)
    gains = np.array(found["contrastive"]["long_every"]) - np.array(found["standard"]["long_every"])
    every = found["comparison"]["every"]
    assert every["mean_gain"] == pytest.approx(gains.mean(), abs=1e-6) and every["higher"] == (gains > 0).sum()
    # Student's t with one degree of freedom: 12.706 standard errors.
    half = 12.7062 * abs(gains[0] - gains[1]) / 2
    np.testing.assert_allclose(every["interval"], [gains.mean() - half, gains.mean() + half], atol=1e-4)
    assert len(found["attention"]["patterns"]) == 2 and len(found["attention"]["patterns"][0]) == 17
    # Three steps have taught nothing yet.
    assert all(loss > 0.9 for loss in found["standard"]["loss"])


def test_trained_parts(tmp_path):
    config = dataclasses.replace(CONFIG, parts=("copying", "variation", "architectures"))
    results = learn_dyck(output_dir=str(tmp_path), config=config, processes=1)
    row = results["copying"]["data"]["rows"]["1"]
    assert row["uniform"] == [row["all_uniform"]] and 0 <= row["accuracy"][0] <= 1
    networks = results["variation"]["data"]["networks"]
    assert networks["standard"]["baseline"] == pytest.approx(dirichlet_baseline(17))
    patterns = np.array(networks["standard"]["patterns"])
    assert networks["standard"]["variation"][1] == pytest.approx(((patterns[0] - patterns[1]) ** 2).sum(), abs=1e-2)
    table = results["architectures"]["data"]["rows"]["2,2,2"]
    assert len(table["mean"]) == 2 and results["architectures"]["data"]["baseline"] == pytest.approx(3.295, abs=1e-3)
    shown = results["architectures"]["data"]["shown"]
    assert shown["name"] == "2,2,2" and len(shown["prefix"]) == 18 and np.shape(shown["patterns"]) == (2, 19, 19)
    np.testing.assert_allclose(np.sum(shown["patterns"], axis=-1), 1.0, atol=1e-3)
    # What stands on the stack is an opening bracket, or nothing but the start token.
    assert all(top == 0 or shown["prefix"][top - 1] in "[(" for top in shown["tops"])
    pictures = ("copying", "variation", "variation_attention_2", "architectures", "architectures_attention")
    for name in pictures:
        assert (tmp_path / f"brackets_{name}.png").exists()


def test_exact_parts_pass_and_misprints_fail():
    """The claims that fail are those that say why."""
    config = dataclasses.replace(CONFIG, parts=("approximation",), language=DyckLanguage(types=2, depth=3))
    claims = [
        *exact_claims.of_constructed(exact.constructed(config)),
        *exact_claims.of_misprints(config),
        *approximation.of_lemmas(approximation.lemma_ratios(config)),
    ]
    failed = [claim for claim in claims if not claim.passed]
    assert all(claim.reason for claim in failed) and all(claim.passed for claim in claims if not claim.reason)
    texts = [claim.text for claim in failed]
    for of in ("(2.55)", "(2.56)", "(2.57)", "(2.46)", "Lemma 2.2.18 as printed", "Lemma 2.2.19 with", "(2.72)"):
        assert any(of in text for text in texts), of
    passed = {claim.text: claim.measured for claim in claims if claim.passed}
    assert passed["(2.51): largest depth after a closing bracket, of all prefixes of 2D tokens / D - 1"] == 1.0
    for of in ("(2.56): the same with D + 1", "LN_C with LN_0(0)", "(2.46): the same with 2k + 1"):
        assert any(text.startswith(of) for text in passed), of
    found = approximation.prunings(config)
    assert [claim.passed for claim in approximation.of_prunings(found)][2:] == [True, True]


def test_claims_of_violations():
    rows = [
        {"model": 0, "epsilon": 0.1, "beta": 0.1, "largest": 0.2, "accuracy": [1.0, 0.75, 0.5]},
        {"model": 1, "epsilon": 0.1, "beta": 0.001, "largest": 0.1, "accuracy": [0.98, 1.0, 1.0]},
    ]
    claims = exact_claims.of_violations({"lengths": [4, 100, 2000], "types": 2, "rows": rows})
    # β · length >= 100 holds once, where accuracy is 0.5; it is <= 3 four times; the largest · length is <= 1 twice.
    assert [claim.measured for claim in claims] == pytest.approx([0.0, 0.98, 0.98])
    assert [claim.passed for claim in claims] == [True, False, False]


def test_claims_of_trained_networks():
    def of(beta, accuracy):
        return {"beta": beta, "long_closing": accuracy, "long_every": accuracy, "closing": [0.98, 0.99]}

    standard, contrastive = of([0.2, 0.4], [0.7, 0.8]), of([0.1, 0.1], [0.9, 0.75])
    found = {
        "data": "complete",
        "standard": standard,
        "contrastive": contrastive,
        "uniform": {"closing": [0.995]},
        "comparison": trained.compared(standard, contrastive),
    }
    claims = {claim.text.split(":")[0] + claim.text[-20:]: claim for claim in trained_claims.of_pairs(found)}
    measured = [claim.measured for claim in claims.values()]
    # Ratios 0.5 and 0.25; one of two is higher; ranks of β 3, 4, 1.5, 1.5 and of accuracy 1, 3, 4, 2.
    assert measured[:4] == pytest.approx([0.98, 0.995, 0.375, 0.5])
    assert measured[4] == pytest.approx(np.corrcoef([3, 4, 1.5, 1.5], [1, 3, 4, 2])[0, 1])
    assert [claim.passed for claim in claims.values()] == [True, True, True, False, True]
    assert len(trained_claims.of_pairs(found | {"data": "prefixes"})) == 2


def test_claims_of_copying_and_variation():
    row = {"accuracy": [0.97, 0.99], "uniform": [[0.5, 0.985]], "structure": [[0.3], [0.25]]}
    claims = trained_claims.of_copying({"rows": {"4": row}})
    assert [claim.measured for claim in claims] == pytest.approx([0.97, 0.005])
    assert all(claim.passed for claim in claims)
    nothing = trained_claims.of_copying({"rows": {"4": row | {"structure": [[0.1], [0.1]]}}})
    assert not nothing[1].passed
    networks = {
        name: {"settings": {"network": {"inputs": inputs}}, "closing": [0.99], "variation": [9.0, value], "baseline": 3}
        for name, inputs, value in (("standard", "tokens", 6.0), ("minimal", "rank", 2.0))
    }
    claims = trained_claims.of_variations({"networks": networks})
    assert [claim.measured for claim in claims] == pytest.approx([0.99, 2.0, 1 / 3])
    rows = {"2,4,3": {"closing": [0.98], "mean": [0.1, 5.0, 20.0]}}
    claims = trained_claims.of_architectures({"rows": rows})
    assert [claim.measured for claim in claims] == pytest.approx([0.98, 0.02, 4.0])
    assert all(claim.passed for claim in claims)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"parts": ("balance", "magic")}, r"BracketsConfig.parts \(--parts\): no magic; there are balance"),
        ({"parts": ()}, "BracketsConfig.parts: is empty"),
        ({"seeds": 0}, "BracketsConfig.seeds: 0 is not"),
        ({"lengths": (28, 20)}, "BracketsConfig.lengths = .*ascending"),
        ({"units": (50,)}, "BracketsConfig.units = .*from 1 to 40"),
        ({"network": TOKENS}, "BracketsConfig.network: must have one layer behind a minimal first one"),
        ({"language": DyckLanguage(types=1)}, "at least 2 types"),
        ({"seed": -1}, "BracketsConfig.seed = -1: must be from 0"),
        ({"solutions": 1}, "BracketsConfig.solutions: one solution"),
        ({"variations": (), "parts": ("variation",)}, "BracketsConfig.variations: is empty"),
        ({"language": DyckLanguage(depth=3)}, "test prefix has depth 4; use at least that, or .*: complete"),
        ({"language": DyckLanguage(depth=3), "parts": ("variation",)}, "test prefix has depth 4; .*: variation"),
        ({"architecture_seeds": 1}, "BracketsConfig.architecture_seeds: one run varies from nothing"),
        ({"architectures": ((2, 4, 1),)}, r"BracketsConfig.architectures: \(2, 4, 1\) is not \(k, D, layers\)"),
        ({"architectures": ((2, 4, 2), (5, 4, 2))}, r"BracketsConfig.architectures: \(5, 4, 2\)"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(PadirError, match=message):
        dataclasses.replace(CONFIG, **options)


def test_options_of_the_command(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(run, "run", lambda parts, folder, prefix, processes: seen.append(parts) or {})
    long = dataclasses.replace(CONFIG, parts=(*EXACT, *TRAINED), training=dataclasses.replace(SHORT, steps=1000))
    learn_dyck(output_dir=str(tmp_path), config=long, quick=True, seed=7, seeds=3)
    assert [part.name for part in seen[0]] == ["balance", "violation", "approximation", "complete"]
    settings = seen[0][0].about["settings"]
    assert (settings["seed"], settings["seeds"], settings["training"]["steps"]) == (7, 3, 600)
    assert [part.float64 for part in seen[0]] == [True, True, True, False]
    # What is asked for stays, and nothing grows.
    learn_dyck(output_dir=str(tmp_path), config=CONFIG, quick=True, parts=["copying"])
    assert [part.name for part in seen[1]] == ["copying"]
    assert seen[1][0].about["settings"]["training"]["steps"] == SHORT.steps
    with pytest.raises(PadirError, match=r"BracketsConfig.parts \(--parts\): no copies"):
        learn_dyck(output_dir=str(tmp_path), config=CONFIG, parts=["copies"])
    with pytest.raises(PadirError, match="learn_dyck.parts: 'copying' is no list"):
        learn_dyck(output_dir=str(tmp_path), config=CONFIG, parts="copying")
    with pytest.raises(PadirError, match="learn_dyck.processes: 0 must be at least 1"):
        learn_dyck(output_dir=str(tmp_path), config=CONFIG, processes=0)
    with pytest.raises(PadirError, match="one network|cannot differ"):
        Variation("one", TOKENS, SHORT, 1)
    with pytest.raises(PadirError, match="T_max of its positions is 28, but the longest sequences have 18"):
        Variation("linear", dataclasses.replace(TOKENS, positions="linear"), SHORT)
