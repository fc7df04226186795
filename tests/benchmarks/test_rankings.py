"""What `benchmarks/rankings.py` asks `padir evaluate` for, and what it says of the answers."""

import gzip
import json
import sys
from pathlib import Path

import pytest

import gin
from padir.cli import config
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import rankings
from rankings import BEAM, BOTH, CAUSAL, ITSELF, RANKER, TEACHER, WAYS


@pytest.fixture
def asked(monkeypatch):
    """The arguments of each evaluation, which writes outputs of its own."""
    found = []

    def run_padir(arguments):
        options = dict(each.removeprefix("--").partition("=")[::2] for each in arguments if "=" in each)
        path = Path(options["output_dir"]) / options["name"]
        row = {"bleu": 10.0 + len(found), "chrf": 50.0, "length_accuracy": None, "mean_steps_run": 2.0}
        path.with_suffix(".json").write_text(json.dumps(row | {"stutter_per_100_words": 0.0}))
        first = "the cat sat on the mat" if "beam" in path.name else "a dog ran"
        path.with_suffix(".txt").write_text(f"{first}\nthe cat sat on the mat\n")
        found.append(arguments)
        return 0

    monkeypatch.setattr(rankings, "run_padir", run_padir)
    return found


@pytest.mark.parametrize("name", WAYS)
def test_a_way_decodes_and_is_ranked_as_its_name_says(name, asked, tmp_path):
    rankings.evaluated(name, "de_en", Path("data"), tmp_path)
    (arguments,) = asked
    model = "ar" if name == BEAM else "padir"
    assert any(each.startswith("--run_dir=") and each.endswith(f"tatoeba_de_en_{model}") for each in arguments)
    assert "--sources=data/valid.de.gz" in arguments and "--references=data/valid.en.gz" in arguments
    rescored = any(each.startswith("--rescore_with=") for each in arguments)
    assert rescored == (WAYS[name].ranked_by in (TEACHER, BOTH))
    config.parse([WAYS[name].decode_file], list(WAYS[name].bindings))
    decode = gin.query_parameter("evaluate.decode").scoped_configurable_fn()
    if name == BEAM or name in CAUSAL:
        assert decode == (Autoregressive() if "greedy" in name else BeamSearch(beam_size=5, num_hypotheses=1))
        return
    assert decode.num_steps == 4 and not decode.likeliest_first
    assert decode.hypotheses_per_source == (1 if "1 length" in name else 20 if "draws" in name else 5)
    if decode.hypotheses_per_source > 1:
        assert (decode.ranker_share > 0) == (WAYS[name].ranked_by in (RANKER, ITSELF, BOTH))
        assert decode.self_rescoring == (WAYS[name].ranked_by == ITSELF)


@pytest.mark.parametrize("ranker", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_student_leaves_out_what_it_does_not_have(ranker, causal, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(rankings, "described", lambda direction: {"ranker": ranker, "causal_stage": causal})
    (tmp_path / "valid.de.gz").write_bytes(gzip.compress(b"die Katze\n" * 2))
    options = [f"--work={tmp_path}", f"--data={tmp_path}", f"--output={tmp_path / 'o.json'}", "--direction=en_de"]
    monkeypatch.setattr(sys, "argv", ["rankings.py", *options])
    assert rankings.main() == 0
    left_out = WAYS.keys() - json.loads((tmp_path / "o.json").read_text())["ways"].keys()
    of_ranker = {name for name, way in WAYS.items() if way.ranked_by in (RANKER, BOTH)}
    of_causal_mode = {name for name, way in WAYS.items() if way.ranked_by == ITSELF} | CAUSAL.keys()
    assert len(of_ranker) == len(of_causal_mode) == 4
    assert left_out == (set() if ranker else of_ranker) | (set() if causal else of_causal_mode)
    assert all(f"--sources={tmp_path / 'valid.en.gz'}" in arguments for arguments in asked)


def test_the_result_compares_with_the_teachers_beam_and_nothing_is_done_twice(asked, tmp_path, monkeypatch, capsys):
    (tmp_path / "valid.en.gz").write_bytes(gzip.compress(b"the cat sat on the mat\n" * 2))
    output = tmp_path / "result.json"
    options = [f"--work={tmp_path / 'work'}", f"--data={tmp_path}", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["rankings.py", *options])
    assert rankings.main() == 0 and rankings.main() == 0
    assert len(asked) == len(WAYS)
    result = json.loads(output.read_text())
    assert (result["direction"], result["sentences"], list(result["ways"])) == ("de_en", 2, list(WAYS))
    assert "from_teacher" not in result["ways"][BEAM]
    one = result["ways"]["1 length"]
    assert one["from_teacher"]["difference"] < -20
    # Those of the first half differ.
    assert one["second_half"]["bleu"] == pytest.approx(100) == result["ways"][BEAM]["second_half"]["bleu"]
    assert one["second_half"]["from_teacher"]["difference"] == pytest.approx(0)
    assert f"{BEAM}: 10.00" in capsys.readouterr().out
