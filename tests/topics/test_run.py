import json
from pathlib import Path

import numpy as np
import pytest
from uploads import upload

from padir.errors import PadirError
from padir.topics import run
from padir.topics.analysis import analyze_topics
from padir.topics.masked_language_modelling import CROSS_ENTROPY, MaskingConfig
from padir.topics.run import learn_topics
from padir.topics.settings import TopicsConfig
from padir.topics.topic_model import Lengths, TopicModel
from padir.topics.training import SGD, TopicTraining


def test_exact_parts_end_to_end(tmp_path):
    """What fails is what the thesis prints wrongly, and says why."""
    results = learn_topics(
        output_dir=str(tmp_path), config=TopicsConfig(), quick=True, parts=("attention", "landscapes"), processes=1
    )
    for name, result in results.items():
        assert json.loads((tmp_path / f"topics_{name}.json").read_text()) == result
        assert (tmp_path / f"topics_{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert all(claim["passed"] for claim in results["landscapes"]["claims"])
    failed = [claim for claim in results["attention"]["claims"] if not claim["passed"]]
    assert [claim["claim"].split(" as ")[0].split(" do ")[0] for claim in failed] == [
        "T3, λ_1",
        "before (2.27)",
        "Assumption 2.1.2",
        "queries MASK",
    ]
    assert all(claim["reason"] for claim in failed)


def test_parts_that_train_end_to_end(tmp_path):
    """A few steps of everything, on few words: what claims and pictures need is there, for each seed."""
    config = TopicsConfig(
        model=TopicModel(4, 3), lengths=Lengths(10, 12), batch_size=4, num_seeds=2, value_steps=4, joint_rates=(0.01,),
        joint_sgd_rates=(1.0,), joint_steps=4, second_steps=4, all_steps=4, held_out=20,
        stages=TopicTraining(CROSS_ENTROPY, SGD, 10.0, 25, 3e-4, record_every=5),
    )  # fmt: skip
    parts = ("stages", "value", "second_stage", "all_trained", "joint")
    results = learn_topics(output_dir=str(tmp_path), config=config, parts=parts, processes=1)
    assert {name: len(result["claims"]) for name, result in results.items()} == {
        **{"stages": 2, "value": 14, "second_stage": 4, "all_trained": 13, "joint": 5},
    }
    for name in parts:
        assert (tmp_path / f"topics_{name}.png").read_bytes()[:4] == b"\x89PNG"
    runs = results["joint"]["data"]["runs"]
    assert list(runs) == ["Adam, 0.01", "SGD, 1"]
    assert [len(run["attention"]) for run in runs.values()] == [2, 2]
    assert len(results["all_trained"]["data"]["runs"]) == 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parts": ("figure",)}, "learn_topics.parts: no figure; there are optima, attention"),
        ({"parts": "optima"}, "learn_topics.parts: no optima"),
        ({"processes": 0}, "learn_topics.processes: 0 must be at least 1"),
    ],
)
def test_mistakes(given, message, tmp_path):
    with pytest.raises(PadirError, match=message):
        learn_topics(output_dir=str(tmp_path), config=TopicsConfig(), **given)


def test_seeds_of_the_command(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "run", lambda parts, folder, prefix, processes: seen.append(parts) or {})
    learn_topics(output_dir=str(tmp_path), config=TopicsConfig(), quick=True, seed=4, seeds=2)
    settings = seen[0][0].about["settings"]
    assert (settings["seed"], settings["num_seeds"]) == (4, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": TopicModel(3, 2)}, "TopicsConfig.model: 3 topics; .* use 4 to 85"),
        ({"model": TopicModel(86, 2)}, "TopicsConfig.model: 86 topics; .* use 4 to 85"),
        ({"joint_sgd_rates": (30.0, 10.0)}, "TopicsConfig.joint_sgd_rates = .*ascending"),
        ({"masking": MaskingConfig(p_r=0.0)}, "TopicsConfig.masking: p_m = 0.15, p_r = 0.0; the bounds"),
    ],
)
def test_settings_that_no_part_can_use(settings, message):
    with pytest.raises(PadirError, match=message):
        TopicsConfig(**settings)


def arrays(folder):
    """Words 0, 1 and 2, 3; 4 has no topic."""
    (folder / "t.json").write_text(json.dumps({"vocabulary": 5, "topics": {"a": [0, 1], "b": [2, 3]}}))
    np.save(folder / "e.npy", np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [5.0, 5.0]]))
    rows = np.array([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]])
    np.savez(folder / "a.npz", tokens_0=np.array([0, 1, 2]), attention_0=rows[None, None])
    names = {"topics": "t.json", "embedding": "e.npy", "attention": "a.npz", "output": "out.json"}
    return {name: str(folder / file) for name, file in names.items()}


def test_analyze_topics(tmp_path, capsys):
    given = arrays(tmp_path)
    result = analyze_topics(**given)
    assert json.loads((tmp_path / "out.json").read_text()) == result
    # Cosines: 1 and 1/√2 in topics; 0, 1/√2, 0, 1/√2 between them.
    assert result["cosine"]["ratio"] == pytest.approx((1 + 0.5**0.5) / 0.5**0.5)
    # (0.3 + 0.3) / 2 and (0.2 + 0.2 + 0.1 + 0.1) / 4.
    assert result["attention"]["ratio"] == pytest.approx(2.0)
    assert result["attention"]["means"]["same topic"] == pytest.approx(0.3 * 3 / 100)
    assert result["attention"]["ratio by head"] == [[pytest.approx(2.0)]]
    assert result["top pairs"]["pairs"] == 1 and result["top pairs"]["cosine"] == pytest.approx(1.0)
    assert "Table 2.4: Bert, 0.0005" in capsys.readouterr().out


def test_analyze_arrays_in_a_bucket(tmp_path, bucket, capsys):
    given = arrays(tmp_path)
    here = analyze_topics(**given)
    there = upload(tmp_path, bucket)
    given |= {name: f"{there}/{Path(given[name]).name}" for name in ("embedding", "attention", "topics")}
    assert analyze_topics(**given) | {"facts": None} == here | {"facts": None}


def topics(folder, vocabulary, words):
    """Writes other topics."""
    named = {str(index): each for index, each in enumerate(words)}
    (folder / "t.json").write_text(json.dumps({"vocabulary": vocabulary, "topics": named}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder, given: given | {"embedding": None, "attention": None}, "nothing to analyze; give --run_dir"),
        (lambda folder, given: given | {"topics": str(folder / "no.json")}, "no.json: cannot be read as"),
        (lambda folder, given: np.save(folder / "e.npy", np.ones((4, 2))), r"must be \[V, d\] with the topics' V = 5"),
        (
            lambda folder, given: topics(folder, -5, [[0], [1]]),
            r"cannot be read as .*\(V must be a positive whole number",
        ),
        (lambda folder, given: topics(folder, 5, [[0], [1.7]]), "cannot be read as .* and words whole numbers"),
        (lambda folder, given: np.savez(folder / "a.npz", x=np.ones(2)), "a.npz: has no tokens_0"),
        (
            lambda folder, given: np.savez(folder / "a.npz", tokens_0=np.array([0, 1]), attention_0=np.ones((2, 2))),
            "rows of attention_0 do not sum to 1",
        ),
        (
            lambda folder, given: np.savez(folder / "a.npz", tokens_0=np.array([0, 9]), attention_0=np.eye(2)),
            "tokens_0 is empty or has a token that is not one of 0..4",
        ),
    ],
)
def test_arrays_of_other_shapes(change, message, tmp_path):
    given = arrays(tmp_path)
    given = change(tmp_path, given) or given
    with pytest.raises(PadirError, match=message):
        analyze_topics(**given)
