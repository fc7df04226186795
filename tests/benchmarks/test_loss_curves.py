"""`benchmarks/loss_curves.py`: runs of one seed are alike, and the comparison is what it says."""

import numpy as np
import pytest

from padir.data.records import PreparedSet
from padir.nn.network import NetworkConfig


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("loss_curves")


def test_compared_by_hand(script):
    """Means of 4 and 3, their spread 2 and 1; one window of the other type is further away than that, or none is."""
    exact = [{"losses": [3.0], "validation": 2.5}, {"losses": [5.0], "validation": 3.5}]
    near, far = ([{"losses": [loss], "validation": 3.5}] * 2 for loss in (5.5, 6.5))
    found = script.compared({"float32": exact, "bfloat16": near})["bfloat16"]
    assert found == {"difference": [1.5, 0.5], "spread": [2.0, 1.0], "within": True}
    assert not script.compared({"float32": exact, "bfloat16": far})["bfloat16"]["within"]


def test_batches_are_of_short_pairs(script, tiny):
    split = PreparedSet.open(tiny.data).split("train")
    short = int((split.lengths.max(axis=1) <= 16).sum())
    per_epoch = short // 8
    batches = script.short_batches(split, 3, per_epoch + 2, 8, 16)
    assert len(batches) == per_epoch + 2
    assert {array.shape for batch in batches for array in batch.values()} == {(8, 16)}
    rows = np.concatenate([batch["encoder_input_tokens"] for batch in batches[:per_epoch]])
    assert (rows[:, 0] != 0).all()
    validation = PreparedSet.open(tiny.data).split("validation")
    found = np.concatenate([b["decoder_target_tokens"] for b in script.validation_batches(validation, 8, 16)])
    assert (found[:, 0] != 0).sum() == (validation.lengths.max(axis=1) <= 16).sum()


@pytest.mark.slow
def test_runs_of_one_seed_are_alike(script, tiny, monkeypatch):
    """Eight updates: the loss falls, and rounding moves it less than another seed does."""
    sizes = {"embed_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}
    monkeypatch.setattr(script, "_NETWORK", NetworkConfig(**sizes, num_encoder_layers=1, num_decoder_layers=1))
    data = PreparedSet.open(tiny.data)
    options = {"steps": 8, "batch": 8, "length": 20, "window": 4}
    exact, rounded, other = (
        script.trained(data, seed, kind, **options) for seed, kind in ((0, None), (0, "bfloat16"), (1, None))
    )
    assert len(exact["losses"]) == 2 and exact["losses"][1] < exact["losses"][0]
    assert 0 < abs(rounded["validation"] - exact["validation"]) < 0.02
    assert abs(other["losses"][0] - exact["losses"][0]) > abs(rounded["losses"][0] - exact["losses"][0])
    result = {"runs": {"float32": [exact, other], "bfloat16": [rounded]}, "steps": 8, "window": 4}
    lines = script.table(result | {"compared": script.compared(result["runs"])}).splitlines()
    assert len(lines) == 2 + 3 + 2 and all(line.count("|") == 5 for line in lines)
