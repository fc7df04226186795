"""Programs of `padir export --format=stablehlo` translate as the translator does that they were made from."""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import pytest
from stand_in import sentence, train_vocabulary

import padir
from padir.cli import main as cli
from padir.data.vocabulary import Vocabulary
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.decoding.verifiers import Probe
from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file
from padir.files.checksums import file_hash
from padir.files.paths import as_path, files_below
from padir.inference import load_program
from padir.inference.export import export, export_programs
from padir.inference.translator import Translator
from padir.models.autoregressive import AutoregressiveModel
from padir.models.guided import Judge
from padir.models.padir import PadirModel
from padir.models.rescoring import Rescorer
from padir.models.verification import Verifier
from padir.nn.network import NetworkConfig

NETWORK = NetworkConfig(
    embed_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0
)
# An untrained model repeats itself; without the repeats, all of its texts would be the same.
REFINEMENT = Refinement(num_steps=3, target_buckets=(8,), drop_repeats=False)
# Of 5 to 21 tokens, so of both widths.
TEXTS = [sentence(number) for number in range(6)] + ["no", "is", "now"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.load(train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "v.model"))


def make(vocabulary, kind, compute_type=None, **helpers):
    if kind == "autoregressive":
        network = dataclasses.replace(NETWORK, causal=True, positional_attention=False)
        model = AutoregressiveModel(vocabulary.ids, network, 40, 12)
    else:
        model = PadirModel(vocabulary.ids, NETWORK, 40, 12, causal_stage=kind == "both")
    params = jax.tree.map(lambda leaf: leaf * (3 if kind == "autoregressive" else 1), model.init(3))
    return Translator(model, params, vocabulary, step=7, compute_type=compute_type, **helpers)


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    """(translator, folder of its refinement)"""
    translator = make(vocabulary, "padir")
    folder = tmp_path_factory.mktemp("exported") / "program"
    export_programs(translator, folder, REFINEMENT, batch_sizes=(1, 4), source_buckets=(16,))
    return translator, folder


def texts_of(translator, decode):
    return [translation.text for translation in translator.translate(TEXTS, decode, batch_size=4)]


def test_a_process_without_padir_translates_the_same(exported):
    translator, folder = exported
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import load_program\n"
        "texts = sys.stdin.read().splitlines()\n"
        "for steps in (None, 1): print(*load_program.load(sys.argv[1], steps=steps)(texts), sep='\\n')\n"
        "assert not {'padir', 'flax', 'safetensors'} & set(sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    command = [sys.executable, "-P", "-c", code, str(folder)]
    done = subprocess.run(command, input="\n".join(TEXTS), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    once = texts_of(translator, dataclasses.replace(REFINEMENT, num_steps=1))
    expected = texts_of(translator, REFINEMENT) + once
    assert done.stdout.split("\n")[:-1] == expected
    assert len(set(expected)) > 2


def test_only_line_ends_divide_the_texts_of_the_loader(exported):
    """Of other separators Unicode has several, which come out as the space that the vocabulary makes of them."""
    translator, folder = exported
    given = ["no 1\u2028is here", "no 2 is here now"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-P", folder / "load_program.py"],
        input="\r\n".join([*given, ""]).encode(),
        capture_output=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    expected = [translation.text for translation in translator.translate(given, REFINEMENT, batch_size=4)]
    assert done.stdout.decode().split("\n") == [*expected, ""]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "kind, decode, compute_type",
    [
        ("padir", Refinement(num_steps=2, num_hypotheses=2, target_buckets=(), drop_repeats=False), "bfloat16"),
        ("autoregressive", BeamSearch(beam_size=2), "int8"),
        ("autoregressive", Autoregressive(), None),
        ("both", Verified(), None),
        ("both", Refinement(num_steps=2, num_hypotheses=3, target_buckets=(), self_rescoring=True), None),
    ],
    ids=["bfloat16", "beam int8", "greedy", "verified", "ranked by itself"],
)
def test_every_kind_of_decode(vocabulary, tmp_path, kind, decode, compute_type):
    translator = make(vocabulary, kind, compute_type)
    export_programs(translator, tmp_path / "p", decode, platforms=("cpu",), batch_sizes=(4,), source_buckets=(40,))
    assert load_program.load(tmp_path / "p")(TEXTS) == texts_of(translator, decode)


@pytest.mark.first(1)
@pytest.mark.parametrize("helper", ["teacher", "rescorer", "judge"])
def test_a_decode_with_another_model(vocabulary, tmp_path, helper):
    causal, padir_kind = make(vocabulary, "autoregressive"), "padir"
    decode = Refinement(num_steps=2, num_hypotheses=3, target_buckets=(8,), drop_repeats=False)
    if helper == "rescorer":
        helpers = {"helper": Rescorer(causal.model, causal.params)}
    elif helper == "teacher":
        helpers, decode = {"helper": Verifier(causal.model, causal.params)}, Verified()
    else:
        probe = Probe.fresh((NETWORK.embed_dim,), jax.random.key(1))
        helpers, decode = {"judge": Judge(probe)}, Guided(sampler=Backtracking(stride=2))
        padir_kind = "autoregressive"
    translator = make(vocabulary, padir_kind, **helpers)
    export_programs(translator, tmp_path / "p", decode, platforms=("cpu",), batch_sizes=(4,), source_buckets=(40,))
    expected = texts_of(translator, decode)
    assert load_program.load(tmp_path / "p")(TEXTS) == expected
    # The other model has a say in it.
    if helper == "judge":
        alone = texts_of(causal, Autoregressive())
    else:
        alone = texts_of(make(vocabulary, "padir"), Refinement(num_steps=2, target_buckets=(8,), drop_repeats=False))
    assert expected != alone


def test_what_a_folder_holds(exported):
    translator, folder = exported
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"] and manifest["batch_sizes"] == [1, 4]
    # A bucket of 16 holds the length token, too.
    assert (manifest["source_widths"], manifest["longest_source"]) == ([15, 40], 40)
    assert (manifest["steps"], manifest["step"], manifest["jax"]) == (3, 7, jax.__version__)
    assert manifest["readable_until"] > manifest["made"] and manifest["decode"] == repr(REFINEMENT)
    programs = {f"source{width}_batch{rows}.bin" for width in (15, 40) for rows in (1, 4)} | {"prepare.bin"}
    files = {f"programs/{platform}/{name}" for platform in manifest["platforms"] for name in programs}
    files |= {"manifest.json", "weights.safetensors", "spiece.model", "load_program.py"}
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: file_hash(folder / name) for name in files}
    for platform in manifest["platforms"]:
        read = jax.export.deserialize(bytearray((folder / f"programs/{platform}/source15_batch4.bin").read_bytes()))
        assert read.platforms == (platform,) and read.out_avals[0].shape == (4, 1, 5 + 12)


def test_the_loader_is_short_and_needs_three_packages():
    with open(load_program.__file__, encoding="utf-8") as file:
        text = file.read()
    assert len(text.splitlines()) <= 80
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {(getattr(node, "module", None) or node.names[0].name).partition(".")[0] for node in imports}
    assert names - set(sys.stdlib_module_names) == {"jax", "numpy", "sentencepiece"}


def test_what_the_loader_refuses(exported, monkeypatch):
    translator, folder = exported
    with pytest.raises(ValueError, match="text 2: blank, or longer than 40 tokens"):
        load_program.load(folder)(["no", " "])
    manifest = json.loads((folder / "manifest.json").read_text())
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "rocm")
        with pytest.raises(ValueError, match="exported for cpu, cuda, tpu, but this is rocm"):
            load_program.load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(jax.export, "deserialize", lambda data: 1 / 0)
        until = f"prepare: written by JAX {jax.__version__} to be readable until {manifest['readable_until']}"
        with pytest.raises(ValueError, match=re.escape(until) + ".*export again"):
            load_program.load(folder)


def test_a_damaged_file_is_not_used(exported, tmp_path):
    _, folder = exported
    for name in ("SHA256SUMS", "spiece.model", "weights.safetensors", "manifest.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "programs" / "cpu").mkdir(parents=True)
    (tmp_path / "programs/cpu/prepare.bin").write_bytes(b"not a program")
    with pytest.raises(ValueError, match="prepare.bin: damaged, or not of this export"):
        load_program.load(tmp_path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"platforms": ("cpu", "abacus")}, "platforms: unknown abacus; choose from cpu, cuda, tpu"),
        ({"platforms": ()}, "platforms: name one or more of cpu, cuda, tpu"),
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"source_buckets": (0,)}, "source_buckets"),
        ({"decode": Refinement(return_trace=True)}, "a program returns no trace"),
    ],
)
def test_what_is_refused(exported, tmp_path, options, message):
    decode = options.pop("decode", REFINEMENT)
    with pytest.raises(PadirError, match=message):
        export_programs(exported[0], tmp_path / "p", decode, **options)
    assert not (tmp_path / "p").exists()


def test_the_command(tmp_path, capsys):
    folder = str(tmp_path / "p")
    with pytest.raises(PadirError, match="unknown 'onnx'; choose safetensors or stablehlo"):
        export(run_dir="x", output_dir=folder, format="onnx")
    for name, value in {"compute_type": "int8", "verify_with": "y", "batch_sizes": (2,), "decode": REFINEMENT}.items():
        with pytest.raises(PadirError, match=rf"export\.{name}: is for programs; leave it out, or give --format=stabl"):
            export(run_dir="x", output_dir=folder, **{name: value})
    with pytest.raises(PadirError, match="dtype: is for safetensors"):
        export(run_dir="x", output_dir=folder, format="stablehlo", dtype="bfloat16")
    with pytest.raises(PadirError, match="'auto' is what this machine computes fastest, .* of cuda; name"):
        export(run_dir="x", output_dir=folder, format="stablehlo", compute_type="auto", platforms=("cpu", "cuda"))
    with pytest.raises(PadirError, match="x: no trained model found here"):
        export(run_dir="x", output_dir=folder, format="stablehlo", compute_type="auto", platforms=("cpu",))
    arguments = ["export", "--run_dir=nothing", f"--output_dir={folder}", "--format=stablehlo", "--platforms", "cpu"]
    assert cli.main(arguments) == 2
    assert "nothing: no trained model found here" in capsys.readouterr().err


def test_the_command_writes_what_translates(tiny, tmp_path, capsys):
    """Beside the configuration, which it has saved before; and it does not do so twice."""
    folder = tmp_path / "p"
    arguments = ["export", f"--run_dir={tiny.padir}", f"--output_dir={folder}", "--format=stablehlo", "--platforms=cpu"]
    arguments += ["--gin.export.batch_sizes=(1,)", "--gin.export.source_buckets=(16,)"]
    assert cli.main(arguments) == 0
    assert "export.batch_sizes = (1,)" in (folder / "export.gin").read_text()
    assert "export.gin" not in (folder / "SHA256SUMS").read_text()
    text = "the dog sees the old car."
    assert load_program.load(folder)([text]) == [padir.load(tiny.padir).translate([text])[0].text]
    assert cli.main(arguments) == 2
    assert "exists; choose another output_dir" in capsys.readouterr().err


def test_into_a_bucket(exported, bucket, emulator, tmp_path, quick_retries):
    translator, folder = exported
    options = {"platforms": ("cpu",), "batch_sizes": (1,), "source_buckets": (16,)}

    def fails(request):
        return "drop" if request.method == "POST" and "SHA256SUMS" in request.query.get("name", "") else None

    with emulator.faults.happen(fails), pytest.raises(StorageError, match="SHA256SUMS: the storage did not answer"):
        export_programs(translator, f"{bucket}/p", REFINEMENT, **options)
    # What an interruption leaves is no program yet.
    export_programs(translator, f"{bucket}/p", REFINEMENT, **options)
    for name in files_below(as_path(f"{bucket}/p")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(f"{bucket}/p/{name}", tmp_path / name)
    assert load_program.load(tmp_path)(TEXTS[:2]) == load_program.load(folder)(TEXTS[:2])
    with pytest.raises(PadirError, match="exists; choose another output_dir"):
        export_programs(translator, f"{bucket}/p", REFINEMENT, **options)


def test_an_export_replaces_nothing(exported):
    translator, folder = exported
    with pytest.raises(PadirError, match="exists; choose another output_dir"):
        export_programs(translator, folder, REFINEMENT)
