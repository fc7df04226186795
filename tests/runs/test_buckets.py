"""Trained models in buckets: what every command that reads one makes of it is what it makes of a local one."""

import gzip
import json
import random
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from failing_commands import KILL
from stand_in import sentence, train_vocabulary
from tiny_runs import Tiny
from uploads import upload

import padir
from padir.cli import main as cli
from padir.data import vocabulary as vocabulary_lib
from padir.data.vocabulary import Vocabulary
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.verifiers import Probe
from padir.errors import PadirError, StorageError
from padir.evaluation.evaluate import evaluate
from padir.files.paths import as_path, files_below
from padir.runs.average import average
from padir.runs.checkpoints import Checkpointer
from padir.runs.convert import export_checkpoint, import_checkpoint, open_model
from padir.runs.describe import describe_checkpoint
from padir.runs.directory import save_model
from padir.runs.saved_verifier import load_verifier, save_verifier
from padir.runs.train_state import TrainState
from padir.runtime import sharding
from padir.serving.serve import serve

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SHORT = Autoregressive(max_length_ratio=0, max_length_offset=5)
TEXTS = [sentence(1), sentence(12)]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")


@pytest.fixture(scope="module")
def local(pieces, tmp_path_factory):
    """A local run of three steps, each with other parameters."""
    folder, vocabulary = tmp_path_factory.mktemp("runs") / "ar", Vocabulary.load(pieces)
    model = Tiny.model("ar")(vocabulary.ids)
    save_model(folder, model, vocabulary)
    with Checkpointer(folder) as checkpointer:
        for step in (1, 2, 3):
            params = jax.device_put(model.init(step), sharding.replicated(sharding.make_mesh()))
            checkpointer.save(TrainState(jnp.int32(step), params, {}))
    return folder


@pytest.fixture
def run(local, bucket):
    """The same in a bucket."""
    return str(upload(local, f"{bucket}/ar"))


def params_of(path, **options):
    return open_model(path, sharding.make_mesh(), **options).params


def assert_same(params, other):
    jax.tree.map(np.testing.assert_array_equal, params, other)


def test_load_and_describe(local, run, capsys):
    assert padir.load(run).translate(TEXTS, SHORT) == padir.load(local).translate(TEXTS, SHORT)
    assert_same(params_of(run, step=2), params_of(local, step=2))
    here, there = describe_checkpoint(path=str(local)), describe_checkpoint(path=run)
    assert there == here | {"path": run} and there["step"] == 3
    capsys.readouterr()
    assert cli.main(["checkpoint", run, "--step=1"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 1


def test_average(local, run, bucket, tmp_path):
    average(run_dir=str(local), output_dir=str(tmp_path / "mean"), last=2)
    average(run_dir=run, output_dir=f"{bucket}/mean", last=2)
    assert_same(params_of(f"{bucket}/mean"), params_of(tmp_path / "mean"))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, params_of(local, step=2), params_of(local, step=3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params_of(f"{bucket}/mean"), mean)
    with pytest.raises(PadirError, match="mean: holds a run; choose another output_dir"):
        average(run_dir=run, output_dir=f"{bucket}/mean", last=2)


# TensorStore, which writes arrays, tries for a quarter of an hour, so its error is not waited for.
ARRAYS = "checkpoints/3/params/ocdbt.process_0/"


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("written", "fault"),
    [
        *((ARRAYS, KILL), ("model.json", 503), ("model.json", "drop")),
        *(("checkpoints/3/_CHECKPOINT_METADATA", fault) for fault in ("drop", 503)),
    ],
)
def test_an_average_whose_storage_fails_is_made_by_the_same_command(run, bucket, failing, written, fault):
    command = ["average", f"--run_dir={run}", f"--output_dir={bucket}/out", "--last=2"]
    failing(command, f"/out/{written}", fault)
    with pytest.raises(PadirError, match="no trained model found" if written == "model.json" else "no checkpoint"):
        params_of(f"{bucket}/out")
    assert cli.main(command) == 0
    whole = jax.tree.map(lambda a, b: (a + b) / 2, params_of(run, step=2), params_of(run, step=3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params_of(f"{bucket}/out"), whole)


def test_an_export_and_an_import_that_are_killed_are_made_by_the_same_commands(local, run, bucket, failing, tmp_path):
    command = ["export", f"--run_dir={run}", f"--output_dir={bucket}/out/hf"]
    failing(command, "/out/hf/config.json", KILL)
    with pytest.raises(PadirError, match="no trained model found"):
        padir.load(f"{bucket}/out/hf")
    assert cli.main(command) == 0
    command = ["import", f"--source={bucket}/out/hf", f"--output_dir={bucket}/out/run"]
    failing(command, "/out/run/checkpoints/0/params/ocdbt.process_0/", KILL)
    with pytest.raises(PadirError, match="no checkpoint"):
        params_of(f"{bucket}/out/run")
    assert cli.main(command) == 0
    assert_same(params_of(f"{bucket}/out/run"), params_of(local))


def test_export_and_import(local, run, bucket):
    assert cli.main(["export", f"--run_dir={run}", f"--output_dir={bucket}/hf"]) == 0
    assert files_below(as_path(f"{bucket}/hf")) == ["config.json", "export.gin", "model.safetensors", "spiece.model"]
    assert padir.load(f"{bucket}/hf").translate(TEXTS, SHORT) == padir.load(local).translate(TEXTS, SHORT)
    assert cli.main(["import", f"--source={bucket}/hf", f"--output_dir={bucket}/back"]) == 0
    assert_same(params_of(f"{bucket}/back"), params_of(local))
    with pytest.raises(PadirError, match="is already a run directory of `padir train`; there is nothing to import"):
        import_checkpoint(source=run, output_dir=f"{bucket}/x")
    with pytest.raises(PadirError, match="hf/config.json: exists; choose another folder"):
        export_checkpoint(run_dir=run, output_dir=f"{bucket}/hf")


def test_import_of_t5x(bucket, tmp_path, quick_retries, emulator):
    with zipfile.ZipFile(GOLDEN / "t5x_checkpoint_0.zip") as archive:
        archive.extractall(tmp_path / "checkpoint_0")
    source = upload(tmp_path / "checkpoint_0", f"{bucket}/checkpoint_0")
    with pytest.raises(PadirError, match=rf"^{source}: contains no vocabulary; give the SentencePiece"):
        import_checkpoint(source=str(source), output_dir=f"{bucket}/run")
    assert not as_path(f"{bucket}/run").exists()
    letters, vocabulary = "abcdefghijklmnopqrstuvwx", as_path(f"{bucket}/pieces.model")
    vocabulary_lib.train([" ".join(letters)] * 20, vocabulary, num_pieces=28, model_type="bpe")
    import_checkpoint(source=str(source), output_dir=f"{bucket}/run", vocabulary=str(vocabulary))
    assert_same(params_of(f"{bucket}/run"), params_of(tmp_path / "checkpoint_0"))
    assert_same(params_of(str(source)), params_of(tmp_path / "checkpoint_0"))


def test_damage_is_named(run, emulator, quick_retries):
    weights = next(name for name in files_below(as_path(run)) if name.startswith("checkpoints/3/params/d/"))
    path = as_path(run) / weights
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(PadirError, match=rf"{run}/checkpoints/3.*params/d/.* has changed since it was saved"):
        padir.load(run, step=3)
    assert_same(params_of(run, step=2), params_of(run, step=2))
    path.write_bytes(whole)
    as_path(f"{run}/model.json").write_text("{")
    with pytest.raises(PadirError, match=rf"^{run}/model.json: "):
        padir.load(run)
    with pytest.raises(PadirError, match=rf"^{run}x: no trained model found here; give a run directory"):
        padir.load(f"{run}x")
    with emulator.faults.happen(lambda request: 503), pytest.raises(StorageError, match="did not answer") as caught:
        padir.load(run)
    assert caught.value.status == 74


def test_a_verifier(bucket, emulator, quick_retries):
    generator = {"network": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}}
    probe, folder = Probe.fresh((4, 7), jax.random.key(1)), f"{bucket}/verifier"
    with pytest.raises(PadirError, match=rf"^{folder}: there is no verifier here"):
        load_verifier(folder, generator)
    save_verifier(folder, probe, generator, {"accuracy": 0.75})
    features = jax.random.normal(jax.random.key(5), (20, 4))
    loaded = load_verifier(folder, generator).probe
    np.testing.assert_array_equal(loaded(None, None, features), probe(None, None, features))
    with emulator.faults.happen(lambda request: 503), pytest.raises(StorageError, match="did not answer"):
        load_verifier(folder, generator)
    weights = as_path(folder) / "verifier.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    with pytest.raises(PadirError, match=rf"^{folder}: damaged"):
        load_verifier(folder, generator)


def test_evaluation(local, run, bucket, tmp_path):
    """Of files and with a constraint; a baseline from the bucket, and results into it."""
    texts = "".join(f"{sentence(number)}\n" for number in range(6))
    given = {"decode": SHORT, "batch_size": 8}
    for folder in (as_path(bucket), tmp_path):
        (folder / "text.gz").write_bytes(gzip.compress(texts.encode(), mtime=0))
        (folder / "constraint.json").write_text('{"forbidden": ["zzz"]}')
        (folder / "baseline.txt").write_text(texts)
        model = run if folder is not tmp_path else str(local)
        evaluate(
            run_dir=model,
            output_dir=str(folder / "results"),
            name="ar",
            sources=str(folder / "text.gz"),
            references=str(folder / "text.gz"),
            constraint=str(folder / "constraint.json"),
            baseline=str(folder / "baseline.txt"),
            **given,
        )
    there, here = as_path(f"{bucket}/results"), tmp_path / "results"
    assert files_below(there) == ["ar.html", "ar.json", "ar.md", "ar.txt"]
    assert (there / "ar.txt").read_bytes() == (here / "ar.txt").read_bytes()
    results = [json.loads((folder / "ar.json").read_text()) for folder in (there, here)]
    differing = {name for name in results[1] if results[0][name] != results[1][name]}
    assert results[0].keys() == results[1].keys() and differing == {"run_dir", "baseline", "constraint"}
    assert results[0]["constraint_met"] == 100.0
    with pytest.raises(PadirError, match="none: cannot read the baseline's hypotheses"):
        evaluate(
            run_dir=run,
            output_dir=f"{bucket}/results",
            name="x",
            sources=f"{bucket}/text.gz",
            **given,
            references=f"{bucket}/text.gz",
            baseline=f"{bucket}/none",
        )


def test_evaluation_of_a_set_that_is_copied_first(tiny, bucket, tmp_path, emulator):
    """The copy is read; model, set and results lie in the bucket."""
    run, data = upload(tiny.ar, f"{bucket}/ar"), upload(tiny.data, f"{bucket}/data")
    given = {"name": "ar", "decode": SHORT, "batch_size": 20}
    evaluate(run_dir=str(tiny.ar), data_dir=str(tiny.data), output_dir=str(tmp_path / "out"), **given)
    options = {"run_dir": str(run), "data_dir": str(data), "data_cache": str(tmp_path / "cache")}
    for output in ("first", "second"):
        with emulator.faults.happen(lambda request: None) as requests:
            evaluate(output_dir=f"{bucket}/{output}", **options, **given)
        read = [request.path for request in requests if request.path.startswith("/download")]
        copied = [path for path in read if path.endswith("/data/test-00000.array_record")]
        assert len(copied) == (output == "first")
        assert as_path(f"{bucket}/{output}/ar.txt").read_bytes() == (tmp_path / "out" / "ar.txt").read_bytes()


def test_a_trace(local, run, bucket):
    model = [f"--run_dir={run}", f"--beside={local}", "--gin.trace.decode=@Autoregressive()"]
    assert cli.main(["trace", TEXTS[0], *model, f"--html={bucket}/page.html", f"--output={bucket}/trace.json"]) == 0
    ours, theirs = json.loads(as_path(f"{bucket}/trace.json").read_text())
    assert ours["hypotheses"] == theirs["hypotheses"] and ours["source"]["text"] == TEXTS[0]
    assert "<!doctype html" in as_path(f"{bucket}/page.html").read_text()[:100].lower()


def test_models_that_are_served(local, run, monkeypatch):
    served = []
    monkeypatch.setattr("padir.serving.listen.listen", lambda server, **options: served.append(server))
    serve(run_dir=run, others=[f"local={local}"], warm_up=False)
    ((there, here),) = (list(server.models.values()) for server in served)
    assert (there.name, here.name) == ("ar", "local")
    assert there.translator.translate(TEXTS, SHORT) == here.translator.translate(TEXTS, SHORT)


@pytest.mark.first(1)
@pytest.mark.parametrize(("written", "fault"), [("ar.json", KILL), ("ar.txt", 503), ("ar.json", 503)])
def test_an_evaluation_whose_storage_fails_is_made_by_the_same_command(run, bucket, emulator, failing, written, fault):
    as_path(f"{bucket}/text").write_text("".join(f"{sentence(number)}\n" for number in range(6)))
    command = ["evaluate", f"--run_dir={run}", f"--output_dir={bucket}/out", "--name=ar", "--batch_size=8"]
    command += [f"--sources={bucket}/text", f"--references={bucket}/text", "--gin.evaluate.decode=@Autoregressive()"]
    failing(command, f"/out/{written}", fault)
    # What counts as a result is written last.
    assert not as_path(f"{bucket}/out/ar.json").exists()
    chance, slow = random.Random(1), []

    def sometimes(request):
        slow.append(chance.random() < 0.3)
        return "slow" if slow[-1] else None

    with emulator.faults.happen(sometimes):
        assert cli.main(command) == 0
    assert any(slow)
    assert json.loads(as_path(f"{bucket}/out/ar.json").read_text())["n"] == 6
