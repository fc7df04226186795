"""`benchmarks/train_step.py` on tiny models: what it measures is what it says."""

import weakref
from pathlib import Path

import numpy as np
import pytest

from padir.benchmark.measure import Timing
from padir.models.padir import PadirModel

TINY = {"embed_dim": 64, "layers": 1, "pieces": 100, "source": 6, "target": 5}


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("train_step")


def test_the_models_are_the_papers(script):
    built = script.models(512, 6, 32_000, 32, 32)
    assert {name: model.parameter_count() for name, model in built.items()} == {
        "AR": 60_506_624,
        "PaDIR, 1 stage": 66_997_760,
        "PaDIR, 2 stages": 66_997_760,
    }
    assert [built[name].decoder_passes for name in built] == [1, 1, 2]


@pytest.mark.slow
def test_a_call_is_an_update(script):
    """The loss of the one batch falls call by call, and all its tokens count."""
    model = script.models(**TINY)["AR"]
    updates = script.Updates(model, script.random_batch(4, 6, 5, 100))
    found = [updates() for _ in range(3)]
    assert [row["tokens"] for row in found] == [4 * (6 + 5)] * 3
    assert np.diff([row["learning_rate"] for row in found]) == pytest.approx([(3e-3 - 1e-5) / 10_000] * 2, rel=1e-3)
    assert all(np.isfinite(row["loss"]) for row in found)
    assert updates.compile_seconds > 0 and updates.xla_flops > model.training_flops(4, 6, 5)


def test_products_by_hand(script):
    network = script.models(**TINY)["AR"].network
    products = script.plain_products(8, network)
    assert len(products) == 6
    for name, (run, flop) in products.items():
        assert flop == 2 * 8 * 64 * (256 if name.startswith("feed-forward") else network.vocab_size)
        run(None)


def test_figures_by_hand(script, monkeypatch):
    """A median of 500 ms: 2 x (6 + 5) tokens in half a second, and the operations in it of a machine of 10 GFLOP/s."""

    class Updates:
        model = PadirModel(script.TokenIds(100), script.models(**TINY)["PaDIR, 1 stage"].network, 6, 5, num_stages=2)
        compile_seconds, xla_flops = 3.0, 4e9

    timing = Timing(np.array([400.0, 500.0, 900.0]), np.zeros(3, int))
    row = script.describe(Updates, timing, 10.0, {"batch": 2, "source": 6, "target": 5})
    flop = Updates.model.training_flops(2, 6, 5)
    assert row["tokens_per_second"] == pytest.approx(44)
    assert row["gflop"] == flop / 1e9 and row["xla_gflop"] == 4.0
    assert row["gflops_per_second"] == pytest.approx(2 * flop / 1e9)
    assert row["of_machine"] == pytest.approx(2 * flop / 1e10)
    assert "of_bfloat16_peak" not in row, "of a CPU no peak is known"
    monkeypatch.setattr(script, "peak_flops", lambda kind: 1e12)
    row = script.describe(Updates, timing, 10.0, {"batch": 2, "source": 6, "target": 5})
    assert row["of_bfloat16_peak"] == pytest.approx(2 * flop / 1e12)
    assert script._against_t5x("AR", timing) == {"t5x_ms": 1586.0, "speed_up_over_t5x": pytest.approx(3.172)}
    assert script._against_t5x("PaDIR, 1 stage", timing) == {}
    monkeypatch.setattr(script.jax, "default_backend", lambda: "gpu")
    assert script._against_t5x("AR", timing) == {}, "T5X was timed on a CPU"


@pytest.mark.slow
def test_each_model_has_its_own_figures_beside_plain_products(script, monkeypatch):
    alive = weakref.WeakSet()

    class Updates(script.Updates):
        def __init__(self, *arguments):
            assert not alive, "in a run there is only one"
            super().__init__(*arguments)
            alive.add(self)

    monkeypatch.setattr(script, "Updates", Updates)
    sizes = {"embed_dim": 64, "layers": 1, "pieces": 100, "source": 6, "target": 5, "batch": 2}
    seen = []
    result = script.measure(repeats=2, **sizes, written=lambda result: seen.append(list(result["systems"])))
    assert [len(names) for names in seen] == [1, 2, 3], "what is measured is written at once"
    lines = script.table(result).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| AR", "| PaDIR, 1 stage", "| PaDIR, 2 stages"]
    assert all(line.count("|") == 14 for line in lines)
    for row in result["systems"].values():
        assert row["step_ms"]["n"] == 2 and len(row["machine_gflops_per_second"]) == 6
        fastest = max(row["machine_gflops_per_second"].values())
        assert row["of_machine"] == pytest.approx(row["gflops_per_second"] / fastest)


@pytest.mark.slow
def test_rounded_products_beside_float32(script):
    sizes = {"embed_dim": 64, "layers": 1, "pieces": 100, "source": 6, "target": 5, "batch": 2}
    result = script.measure(repeats=1, **sizes, compute_type="bfloat16")
    for row in result["systems"].values():
        rounded = row["bfloat16"]
        assert rounded["speed_up"] == pytest.approx(row["step_ms"]["median"] / rounded["step_ms"]["median"])
        assert rounded["gflop"] == row["gflop"] and rounded["parameters"] == row["parameters"]
    names = [line.split(" | ")[0] for line in script.table(result).splitlines()[2:]]
    assert names[:2] == ["| AR", "| AR, bfloat16"] and len(names) == 6


def test_small_models_have_the_sizes_of_the_gin_file(script):
    built = script.models(**script._SMALL, pieces=4000, source=64, target=64)
    assert built["AR"].parameter_count() == 8_427_264
    # In the gin file, lengths are relative: one more map [256, 256].
    assert built["PaDIR, 2 stages"].parameter_count() == 9_640_704 - 256**2


def test_buckets_are_those_of_the_gin_file(script):
    text = (Path(__file__).resolve().parents[2] / "gin" / "runs" / "tatoeba_base.gin").read_text(encoding="utf-8")
    assert f"train.buckets = {script.BUCKETS['10 buckets']}\n" in text


def test_batches_of_even_ranks(script, tiny):
    """524 pairs in batches of 50 are 10: of the sorted epoch every other one, from the second on."""
    data = script.PreparedSet.open(tiny.data)
    found = script.spread_batches(data, (16, 32), 50, 5)
    widths = [batch["decoder_target_tokens"].shape for batch in found]
    assert widths == sorted(widths) and all(rows == 50 for rows, _ in widths)
    everything = script.spread_batches(data, (16, 32), 50, 10)
    for one, other in zip(found, everything[1::2], strict=True):
        np.testing.assert_array_equal(one["encoder_input_tokens"], other["encoder_input_tokens"])


def test_tokens_of_a_corpus_by_hand(script):
    """Two batches with 3 and 2 tokens in 8 places; by medians 100 + 300 ms, or 100 + 100."""

    def batches(*lengths):
        rows = [np.arange(4) < length for length in lengths]
        return [{"decoder_target_tokens": np.array([row], np.int32)} for row in rows]

    requests = np.array([0, 1, 0, 1, 0, 1])
    timings = {
        "float32, 6 buckets": Timing(np.array([90.0, 300.0, 100.0, 300.0, 900.0, 310.0]), requests),
        "bfloat16, 6 buckets": Timing(np.full(6, 100.0), requests),
    }
    slow, fast = script.compared(timings, {"6 buckets": batches(3, 2)}).values()
    assert (slow["target_tokens"], slow["filled"], slow["speed_up"]) == (5, 5 / 8, 1.0)
    assert slow["target_tokens_per_second"] == pytest.approx(5 / 0.4)
    assert fast["speed_up"] == pytest.approx(2.0) and fast["step_ms"]["n"] == 6


@pytest.mark.slow
def test_a_corpus_is_measured_in_both_types_and_buckets(script, tiny, monkeypatch):
    monkeypatch.setattr(script, "_SMALL", {"embed_dim": 64, "layers": 1})
    monkeypatch.setattr(script, "_ON_CORPUS", ("AR",))
    monkeypatch.setattr(script, "BUCKETS", {"6 buckets": (32,), "10 buckets": (16, 32)})
    corpus = script.measure_on_corpus(str(tiny.data), "bfloat16", batch=50, count=2, repeats=1)
    assert list(corpus["models"]["AR"]) == [
        f"{kind}, {which} buckets" for kind in ("float32", "bfloat16") for which in (6, 10)
    ]
    coarse, fine = (corpus["models"]["AR"][f"float32, {which} buckets"] for which in (6, 10))
    assert coarse["filled"] < fine["filled"] <= 1
    assert script.corpus_table(corpus).count("| AR |") == 4
