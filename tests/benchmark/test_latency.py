"""`padir benchmark latency`, `throughput`, `roofline` and `compare`: what they write is what was run."""

import dataclasses
import json
from pathlib import Path

import pytest

from padir.benchmark.compare import compare
from padir.benchmark.latency import Asked, ask, batched, latency, latency_table, shape_of
from padir.benchmark.roofline import phases_of, roofline, roofline_table
from padir.benchmark.systems import System, open_systems
from padir.benchmark.throughput import throughput
from padir.benchmark.work import decode_cost, verified_cost
from padir.benchmark.workloads import FixedLengths, PreparedText, Request, SourceText
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn import flops
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

IDS = TokenIds(50)
TINY = {"embed_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1}
TINY |= {"num_decoder_layers": 1, "dropout_rate": 0.0, "max_positions": 32}
CAUSAL = NetworkConfig(**TINY, causal=True, positional_attention=False)


def padir_model(ids):
    return PadirModel(ids, NetworkConfig(**TINY), 32, 32)


def ar_model(ids):
    return AutoregressiveModel(ids, CAUSAL, 32, 32)


EXACT = {"max_length_ratio": 1.0, "max_length_offset": 0}
NEVER = {"stop": StopNever(), "target_buckets": (8, 12)}
UNTRAINED = [
    System("greedy", model=ar_model, decode=Autoregressive(**EXACT)),
    System("beam", model=ar_model, decode=BeamSearch(beam_size=3, num_hypotheses=1, **EXACT)),
    System("2 steps", model=padir_model, decode=Refinement(num_steps=2, **NEVER)),
    System("4 steps", model=padir_model, decode=Refinement(num_steps=4, num_hypotheses=3, **NEVER)),
]
WORKLOAD = FixedLengths(10, 9, num_requests=2, num_pieces=50)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark") / "untrained.json"
    result = latency(systems=UNTRAINED, workload=WORKLOAD, output=str(path), repeats=3, num_pieces=50)
    return path, result


def test_what_is_written(measured):
    path, result = measured
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert list(result["systems"]) == ["greedy", "beam", "2 steps", "4 steps"]
    assert result["workload"] == repr(WORKLOAD) and result["batch_size"] == 1
    assert result["requests"] == {
        "count": 2,
        "mean_source_tokens": 10,
        "max_source_tokens": 10,
        "mean_target_tokens": 9,
        "max_target_tokens": 9,
    }
    assert len(result["facts"]["load_average_after"]) == len(result["facts"]["load_average"]) == 3
    first = result["systems"]["greedy"]["latency_ms"]["median"]
    for system in result["systems"].values():
        found = system["latency_ms"]
        assert found["n"] == 6 and found["late_compilations"] == 0
        assert 0 < found["median_ci95"][0] <= found["median"] <= found["median_ci95"][1] <= found["p99"]
        assert system["speed_up"] == pytest.approx(first / found["median"])
        # 10 source tokens are padded to 16, or to 15 with [LENGTH] before them.
        assert system["source_padding"] == pytest.approx(5 / 15 if "steps" in system["decode"] else 6 / 16)
    # The two refinements differ in hypotheses and are two programs, greedy and beam two more.
    assert all(system["latency_ms"]["compilations"] >= 1 for system in result["systems"].values())


def test_weights_that_know_no_end_write_what_they_are_asked_for(measured):
    """Autoregressive systems take one step for each of the 9 tokens; refinements take all their steps."""
    steps = {name: system["steps_per_batch"] for name, system in measured[1]["systems"].items()}
    assert steps == {"greedy": 9, "beam": 9, "2 steps": 2, "4 steps": 4}
    padding = {name: system.get("target_padding") for name, system in measured[1]["systems"].items()}
    assert padding == {"greedy": None, "beam": None, "2 steps": 0.25, "4 steps": 0.25}


def test_work_is_that_of_the_padded_shapes(measured):
    """Source 10 in a bucket of 16 with [LENGTH]; target 9 in one of 12; three hypotheses; one row on each device."""
    network = NetworkConfig(**TINY, vocab_size=256)
    once = flops.encode(network, 8, 16) + flops.plan(network, 8, 15, 12, prepared=True)
    expected = once + 4 * flops.decoder_pass(network, 24, 12, 12, 15, sources=8)
    found = measured[1]["systems"]["4 steps"]
    assert found["gflops"] == pytest.approx(expected.flops / 1e9)
    assert found["gigabytes"] == pytest.approx(expected.bytes() / 1e9)


def test_work_of_shortcuts():
    """A plain step of three hypotheses; then, of the one kept among 13 candidates, 12 positions once and 2 thrice."""
    options = {"num_hypotheses": 3, "keep_hypotheses": 1, "candidates": 4, "active_positions": 2}
    system = System("short", model=padir_model, decode=Refinement(num_steps=5, **options, **NEVER))
    asked = Asked("short", open_systems([system], 50)["short"])
    batch = (Request((5,) * 10, 9),)
    asked.steps[batch] = 5
    network = NetworkConfig(**TINY, vocab_size=256)

    def kept(positions):
        step = flops.decoder_pass(network, 8, positions, 12, 15, sources=8, logits=False)
        return step + flops.candidate_logits(network, 8 * positions, 13, lists=8 * positions)

    first = flops.decoder_pass(network, 24, 12, 12, 15, sources=8)
    once = flops.encode(network, 8, 16) + flops.plan(network, 8, 15, 12, prepared=True)
    assert asked.cost(batch) == once + first + kept(12) + 3 * kept(2)


def test_work_of_shared_candidates():
    """In the first step only one of three hypotheses has all logits, and all have those of 12 · 4 tokens and EOS."""
    options = {"num_hypotheses": 3, "candidates": 4, "shared_candidates": True}
    system = System("short", model=padir_model, decode=Refinement(num_steps=1, **options, **NEVER))
    asked = Asked("short", open_systems([system], 50)["short"])
    batch = (Request((5,) * 10, 9),)
    asked.steps[batch] = 1
    network = NetworkConfig(**TINY, vocab_size=256)
    width = network.embed_dim
    hidden = flops.decoder_pass(network, 24, 12, 12, 15, sources=8, logits=False)
    every = flops.Cost(2 * 8 * 12 * width * 256, width * 256)
    shared = flops.Cost(2 * 24 * 12 * width * 49, 0, 8 * 49 * width)
    once = flops.encode(network, 8, 16) + flops.plan(network, 8, 15, 12, prepared=True)
    assert asked.cost(batch) == once + hidden + every + shared


def test_pictures_are_drawn_where_there_is_something_to_draw(measured):
    folder = measured[0].parent
    assert (folder / "untrained_cdf.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "untrained_length.png").exists(), "all targets have one length"
    assert not (folder / "untrained_quality.png").exists(), "nobody knows the quality"


def test_equal_models_are_one():
    opened = open_systems(UNTRAINED, 50)
    assert opened["greedy"].decoder is opened["beam"].decoder is not opened["2 steps"].decoder
    assert opened["2 steps"].decoder is opened["4 steps"].decoder
    assert [system.hypotheses for system in opened.values()] == [1, 3, 1, 3]


def test_batches_have_their_size():
    asked = {system.name: Asked(system.name, open_systems([system], 50)[system.name]) for system in UNTRAINED[2:3]}
    five = FixedLengths(10, 9, num_requests=5, num_pieces=50)
    assert [len(batch) for batch in batched(five, asked, 2)] == [2, 2], "the fifth fills no batch"
    # Fewer requests than a batch has room for are asked more than once.
    (batch,) = batched(five, asked, 8)
    assert len(batch) == 8 and batch[:3] == batch[5:]
    shape = shape_of(asked)
    assert shape(batch) == ((15, 12),) and shape((Request((5,) * 17, 3),)) == ((23, 8),)
    longest = asked["2 steps"].system.model.max_target_length
    assert longest > 13 and shape((Request((5,) * 10, 13),)) == ((15, longest),), "another branch of the same program"
    asked["2 steps"](batch)
    assert asked["2 steps"].steps[batch] == 2


TWO = Refinement(num_steps=1, num_hypotheses=2, **NEVER)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "quality.json").write_text('{"bleu": 12.5}')
    systems = [
        System("AR", str(tiny.ar)),
        System(
            "1 step", str(tiny.padir), decode=Refinement(num_steps=1, **NEVER), quality=str(folder / "quality.json")
        ),
        System("verified", str(tiny.padir), str(tiny.ar), decode=Verified(target_buckets=(32,))),
        System("2 lengths", str(tiny.padir), decode=TWO),
        System("rescored", str(tiny.padir), rescore_with=str(tiny.ar), decode=TWO),
    ]
    workload = PreparedText(str(tiny.data), num_requests=3)
    path = folder / "latency.json"
    return path, latency(systems=systems, workload=workload, output=str(path), repeats=2)


def test_trained_systems_from_text_to_text(trained):
    path, result = trained
    systems = result["systems"]
    assert systems["AR"]["latency_ms"]["n"] == 6
    assert 1 <= systems["AR"]["steps_per_batch"] <= 32 and systems["1 step"]["steps_per_batch"] == 1
    assert set(systems["AR"]["text_ms"]) == {"tokenise", "detokenise"}
    assert 0 < systems["AR"]["text_ms"]["tokenise"] < systems["AR"]["latency_ms"]["median"]
    assert result["requests"]["mean_target_tokens"] is None
    assert systems["1 step"]["bleu"] == 12.5 and "bleu" not in systems["AR"]
    assert path.with_name("latency_quality.png").exists() and path.with_name("latency_length.png").exists()


def test_systems_on_the_text_of_a_file(tiny, tmp_path):
    """Verified decoding has its verifier's ends there; a model that counts in other pieces is refused."""
    (tmp_path / "text").write_text("Peter helps a big dog .\n")
    verified = System("v", str(tiny.padir), str(tiny.ar), decode=Verified(target_buckets=(32,)))
    asked = ask([verified], SourceText(str(tmp_path / "text"), str(tiny.ar)), 50)
    assert list(asked) == ["v"]
    with pytest.raises(PadirError, match="v.*vocabulary"):
        ask([verified], SourceText(str(tmp_path / "text"), "tatoeba_de_en_ar"), 50)


def test_verified_systems_tell_their_rounds(trained, tiny):
    _, result = trained
    found = result["systems"]["verified"]
    assert 1 <= found["rounds_per_batch"] < found["steps_per_batch"]
    # A pass of the drafter for every round, and none for tokens behind the longest draft.
    assert found["steps_per_batch"] <= 2 * found["rounds_per_batch"]
    assert found["gflops"] > result["systems"]["1 step"]["gflops"]


def test_a_rescorers_work_counts(trained, tiny):
    """It encodes the source, and reads both hypotheses in one pass."""
    plain, rescored = (trained[1]["systems"][name] for name in ("2 lengths", "rescored"))
    assert (plain["rescore_with"], rescored["rescore_with"]) == (None, str(tiny.ar))
    more = rescored["gflops"] - plain["gflops"]
    assert 0.3 * plain["gflops"] < more < plain["gflops"]
    padir, ar, shape = padir_model(IDS), ar_model(IDS), {"rows": 3, "source": 5, "target": 7}
    both, alone = (
        decode_cost(padir, TWO, steps=1, hypotheses=2, rescorer=helper, **shape).flops for helper in (ar, None)
    )
    reading = flops.encode(ar.network, 3, 5) + flops.plan(ar.network, 3, 5, 7, prepared=True)
    reading += flops.decoder_pass(ar.network, 6, 7, keys=7, source=5, sources=3)
    assert both - alone == reading.flops


def test_work_of_verified_decoding():
    """Two rounds: of a whole draft, and of a window."""
    drafting, reading = padir_model(IDS), ar_model(IDS)
    decode = Verified(length_beam=3, window=4)
    shape = {"rows": 2, "source": 7, "target": 8, "room": 16}
    once, twice = (verified_cost(drafting, reading, decode, rounds=rounds, **shape).flops for rounds in (1, 2))
    common = {"source": 7, "sources": 2}
    draft, read = drafting.network, reading.network
    expected = flops.encode(draft, 2, 7 + drafting.source_prefix) + flops.encode(read, 2, 7)
    expected += flops.plan(draft, 2, 7, 8, prepared=True) + flops.plan(read, 2, 7, 16, prepared=True)
    expected += flops.decoder_pass(draft, 2, 8, 8, **common) + flops.decoder_pass(read, 2, 8, 16, **common)
    assert once == expected.flops
    later = flops.decoder_pass(draft, 6, 8, 8, **common, logits=False) + flops.all_logits(draft, 6 * 4)
    assert twice - once == (later + flops.decoder_pass(read, 6, 4, 16, **common)).flops


def test_table(measured):
    lines = latency_table(measured[1]).splitlines()
    assert lines[0].startswith("| system | median ms |") and len(lines) == 2 + 4
    assert lines[4].startswith("| 2 steps | ") and "| 2.0 |" in lines[4]
    result = json.loads(json.dumps(measured[1]))
    result["systems"]["beam"]["latency_ms"]["late_compilations"] = 3
    assert latency_table(result).splitlines()[-1] == "WARNING: 3 programs were compiled while measuring"


def test_systems_that_cannot_be_measured(tiny, tmp_path):
    def refused(message, **changes):
        options = {"systems": UNTRAINED[:1], "workload": WORKLOAD, "output": str(tmp_path / "x.json"), "num_pieces": 50}
        with pytest.raises(PadirError, match=message):
            latency(**options | changes)
        assert not (tmp_path / "x.json").exists()

    text = PreparedText(str(tiny.data))
    refused("systems: name at least one", systems=[])
    refused("systems: two have the same name", systems=[UNTRAINED[0], UNTRAINED[0]])
    wrong = System("a", str(tiny.ar), decode=Refinement())
    refused("system 'a': decode: Refinement does not fit a AutoregressiveModel", systems=[wrong])
    refused("system 'greedy': untrained weights make no text; give run_dir", workload=text)
    refused("batch_size 0 and repeats 3 must be at least 1", batch_size=0)
    missing = System("a", str(tiny.ar), quality=str(tmp_path / "none.json"))
    refused("System.quality: .*none.json is not a JSON file of padir evaluate", systems=[missing], workload=text)
    refused("contains id .*, but a system has only 20 pieces; lower the workload's num_pieces", num_pieces=20)
    verified = System("v", str(tiny.padir), str(tiny.ar), decode=Verified(target_buckets=(32,)))
    refused("system 'v': verified decoding ends where its verifier ends a text", systems=[verified])
    with pytest.raises(PadirError, match="benchmark roofline: system 'v' has the phases of two models"):
        roofline(systems=[verified], output=str(tmp_path / "x.json"), source=4, target=4)
    with pytest.raises(PadirError, match="System.run_dir: system 'a' needs either run_dir or model"):
        System("a")
    with pytest.raises(
        PadirError, match="System.verify_with: verified decoding in system None needs a trained run_dir"
    ):
        System(model=padir_model, decode=Verified())
    with pytest.raises(PadirError, match="System.rescore_with: rescoring in system 'r' needs a trained run_dir"):
        System("r", model=padir_model, rescore_with="runs/ar")


def test_throughput(tmp_path, capsys):
    path = tmp_path / "throughput.json"
    # A vocabulary of their own, so that no other test has compiled their programs.
    options = {"systems": UNTRAINED[::2], "workload": WORKLOAD, "output": str(path), "num_pieces": 51}
    result = throughput(**options, batch_sizes=(1, 4), repeats=2)
    assert json.loads(path.read_text())["systems"].keys() == {"greedy", "2 steps"}
    for system in result["systems"].values():
        assert list(system["batches"]) == [1, 4]
        for size, found in system["batches"].items():
            seconds = found["batch_ms"]["mean"] / 1e3
            assert found["sentences_per_second"] == pytest.approx(size / seconds)
            # The two requests are repeated to fill a batch of four, and batches of one hold these four.
            assert found["batch_ms"]["n"] == (8 if size == 1 else 2) and found["gflops_per_second"] > 0
            # Eight devices pad both to as many rows.
            assert (found["batch_ms"]["compilations"] >= 1) == (found["batch_ms"]["compile_seconds"] > 0) == (size == 1)
    assert path.with_suffix(".png").exists()
    assert capsys.readouterr().out.startswith("| sentences/s at batch | 1 | 4 |")
    with pytest.raises(PadirError, match=r"batch_sizes \(4, 1\) must be ascending"):
        throughput(**options, batch_sizes=(4, 1))


def test_a_batch_that_does_not_fit_is_a_systems_last(tmp_path, monkeypatch, capsys):
    import jax

    honest = Asked.__call__

    def small(self, batch):
        if self.name == "2 steps" and len(batch) > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        honest(self, batch)

    monkeypatch.setattr(Asked, "__call__", small)
    options = {"systems": UNTRAINED[::2], "workload": WORKLOAD, "output": str(tmp_path / "t.json"), "num_pieces": 50}
    result = throughput(**options, batch_sizes=(2, 4), repeats=1)
    assert list(result["systems"]["2 steps"]["batches"]) == [2]
    assert list(result["systems"]["greedy"]["batches"]) == [2, 4]
    found = capsys.readouterr()
    assert "2 steps: batches of 4 do not fit into memory" in found.err and found.out.splitlines()[-1].endswith("| – |")


def test_roofline(tmp_path):
    path = tmp_path / "roofline.json"
    rounded = dataclasses.replace(UNTRAINED[2], compute_type="int8")
    result = roofline(systems=[UNTRAINED[1], rounded], output=str(path), source=10, target=9, repeats=3, num_pieces=50)
    assert json.loads(path.read_text())["systems"].keys() == {"beam", "2 steps"}
    rows = {name: {label: phase["rows"] for label, phase in found.items()} for name, found in result["systems"].items()}
    # The source is padded: to 16, or to 15 with [LENGTH] before it.
    assert rows["beam"] == {"encode": 16, "plan": 16, "step": 3, "step: logits": 3}
    assert rows["2 steps"] == {"encode": 16, "plan": 15, "step": 9, "step: logits": 9}
    assert {kind: {*rows} for kind, rows in result["machine"]["gflops_per_second"].items()} == {
        "float32": {3, 16},
        "int8": {9, 15, 16},
    }
    for found in result["systems"].values():
        for phase in found.values():
            assert phase["gflops_per_second"] == pytest.approx(phase["gflops"] / phase["ms"] * 1e3)
            assert phase["of_bound"] == pytest.approx(phase["bound_ms"] / phase["ms"])
        assert found["step: logits"]["gflops"] < found["step"]["gflops"]
    assert roofline_table(result).count("\n") == 4 + 8
    with pytest.raises(
        PadirError, match="system 'beam' does not take 40 source and 9 target tokens; its model allows at most"
    ):
        roofline(systems=UNTRAINED[1:3], output=str(path), source=40, target=9, num_pieces=50)


def test_phases_compute_what_decoding_computes():
    """A phase's step writes what the first step of a decode writes."""
    opened = open_systems(UNTRAINED[2:3], 50)["2 steps"]
    phase = phases_of(opened, 10, 9)["step"]
    tokens, log_probs, cache = phase.run()
    assert tokens.shape == log_probs.shape == (1, 9) and cache is None


class TestCompare:
    @pytest.fixture
    def results(self, measured, tmp_path):
        result = json.loads(json.dumps(measured[1]))
        (tmp_path / "before.json").write_text(json.dumps(result))
        slow, same = result["systems"]["beam"]["latency_ms"], result["systems"]["greedy"]["latency_ms"]
        result["systems"]["beam"]["request_ms"] = [3 * ms for ms in result["systems"]["beam"]["request_ms"]]
        slow |= {"median": 3 * slow["median_ci95"][1], "median_ci95": [2 * slow["median_ci95"][1], 1e9]}
        assert same["median_ci95"][0] <= same["median"]
        result["facts"]["cpu_count"] = 96
        del result["systems"]["4 steps"]
        (tmp_path / "after.json").write_text(json.dumps(result))
        return {"before": str(tmp_path / "before.json"), "after": str(tmp_path / "after.json")}

    def test_ratios_and_conditions(self, results, capsys):
        found = compare(**results)
        assert list(found["systems"]) == ["greedy", "beam", "2 steps"]
        assert found["systems"]["greedy"]["ratio"] == 1.0 and not found["systems"]["greedy"]["clear"]
        assert found["systems"]["beam"]["ratio"] > 1 and found["systems"]["beam"]["clear"]
        assert found["systems"]["beam"]["ratio_ci95"] == pytest.approx([3.0, 3.0], rel=1e-3)
        assert list(found["conditions"]) == ["cpu_count"]
        out = capsys.readouterr().out
        assert "differs: cpu_count: " in out and out.splitlines()[-2].endswith("| yes |")

    def test_another_way_of_decoding_is_a_condition(self, results):
        after = json.loads(Path(results["after"]).read_text())
        after["systems"]["beam"] |= {"decode": "BeamSearch(beam_size=9)", "run_dir": "other"}
        Path(results["after"]).write_text(json.dumps(after))
        found = compare(**results)["conditions"]
        assert list(found) == ["cpu_count", "decode of beam", "run_dir of beam"]
        assert found["run_dir of beam"] == [None, "other"]

    def test_results_of_an_earlier_padir_or_of_other_requests(self, results):
        """The intervals of the medians decide."""
        after = json.loads(Path(results["after"]).read_text())
        for system in after["systems"].values():
            del system["request_ms"]
        Path(results["after"]).write_text(json.dumps(after))
        found = compare(**results)["systems"]
        assert [row["clear"] for row in found.values()] == [False, True, False]
        assert {row["ratio_ci95"] for row in found.values()} == {None}

    def test_estimates_of_compile(self, tmp_path, capsys):
        for name, cycles in {"before": 1000, "after": 1030}.items():
            programs = {"greedy": {"estimated_cycles": cycles}, "large": {"fits": False}}
            (tmp_path / name).write_text(json.dumps({"facts": {"versions": {"jax": "1"}}, "programs": programs}))
        found = compare(before=str(tmp_path / "before"), after=str(tmp_path / "after"))
        assert found["systems"]["greedy"]["ratio"] == pytest.approx(1.03) and found["systems"]["greedy"]["clear"]
        assert found["conditions"] == {} and "| large | does not fit | does not fit |" in capsys.readouterr().out

    def test_what_cannot_be_compared(self, results, tmp_path):
        (tmp_path / "other.json").write_text('{"systems": {}}')
        with pytest.raises(PadirError, match="other.json: not a JSON file of padir benchmark latency"):
            compare(before=results["before"], after=str(tmp_path / "other.json"))
        other = json.loads((tmp_path / "after.json").read_text())
        other["systems"] = {"another": other["systems"]["beam"]}
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(PadirError, match="have no system of the same name"):
            compare(before=results["before"], after=str(tmp_path / "other.json"))
