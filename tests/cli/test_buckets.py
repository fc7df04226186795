"""What commands say of buckets: one line, and a status by which a launcher knows whether to try again."""

import pytest

import gin
from padir.cli import config
from padir.cli.commands import COMMANDS
from padir.cli.main import main
from padir.files.atomic import copy_file
from padir.files.paths import as_path, files_below


@pytest.fixture
def run(bucket, tiny):
    """A run directory in a bucket."""
    for name in files_below(tiny.ar):
        copy_file(tiny.ar / name, f"{bucket}/run/{name}")
    return f"{bucket}/run"


def said(capsys, *arguments):
    """The status and the one line of a command."""
    capsys.readouterr()
    status = main([*arguments])
    (line,) = capsys.readouterr().err.splitlines()
    return status, line


def test_a_checkpoint_is_described_as_on_disk(run, tiny, capsys):
    assert main(["checkpoint", str(tiny.ar)]) == 0
    here = capsys.readouterr().out
    assert main(["checkpoint", run]) == 0
    assert capsys.readouterr().out == here.replace(str(tiny.ar), run)


def test_what_the_user_must_correct_has_status_2(run, emulator, capsys):
    assert said(capsys, "checkpoint", "gs://no-such-bucket/run") == (
        2,
        "padir checkpoint: gs://no-such-bucket: no such bucket; create it with `gcloud storage buckets create "
        "gs://no-such-bucket`, or correct the address",
    )
    status, line = said(capsys, "checkpoint", f"{run}/typo")
    assert status == 2 and f"{run}/typo: no trained model found here" in line
    for code, what in ((401, "no valid credentials"), (403, "permission denied")):
        with emulator.faults.happen(lambda request, code=code: code):
            status, line = said(capsys, "checkpoint", run)
        assert status == 2 and line.startswith(f"padir checkpoint: {run}/") and what in line
    assert said(capsys, "checkpoint", "s3://bucket/run") == (
        2,
        "padir checkpoint: s3://bucket/run: s3:// is not supported, because Orbax cannot save checkpoints there; give "
        "a gs:// address or a local path",
    )


def test_a_gin_file(bucket, capsys):
    """It includes another one from the bucket, and one that comes with padir."""
    base, run = (as_path(bucket) / name for name in ("base.gin", "run.gin"))
    base.write_text("include 'models/tiny.gin'\nNetworkConfig.embed_dim = 48\n")
    run.write_text(f"include '{base}'\ncheckpoint.path = 'no_such_run'\n")
    config.parse([str(run)], [])
    assert gin.query_parameter("NetworkConfig.embed_dim") == 48
    assert gin.query_parameter("NetworkConfig.mlp_dim") > 0 and gin.query_parameter("checkpoint.path") == "no_such_run"
    base.write_text("include 'models/tiny.gin'\nNetworkConfig.embed_dims = 48\n")
    assert said(capsys, "checkpoint", f"--gin_file={run}")[0] == 2
    status, line = said(capsys, "checkpoint", "x", f"--gin_file={base}")
    assert status == 2 and "NetworkConfig" in line and f'In file "{base}", line 2' in line
    status, line = said(capsys, "checkpoint", "x", f"--gin_file={bucket}/none.gin")
    assert status == 2 and line.startswith(f"padir checkpoint: {bucket}/none.gin: there is no such gin file; correct")
    run.write_text(f"include '{bucket}/none.gin'\n")
    status, line = said(capsys, "checkpoint", "x", f"--gin_file={run}")
    assert status == 2 and line.startswith(f"padir checkpoint: {bucket}/none.gin: there is no such gin file; correct")
    assert f'In file "{run}", line 1' in line
    run.write_bytes(b"checkpoint.path = '\xff'\n")
    status, line = said(capsys, "checkpoint", "x", f"--gin_file={run}")
    assert status == 2 and line.startswith(f"padir checkpoint: {run}: this gin file is not UTF-8")
    run.write_text("include 's3://bucket/run.gin'\n")
    for name in ("s3://bucket/run.gin", run):
        status, line = said(capsys, "checkpoint", "x", f"--gin_file={name}")
        assert status == 2 and line.startswith("padir checkpoint: s3://bucket/run.gin: s3:// is not supported")
    status, line = said(capsys, "checkpoint", "x", f"--gin_search_path={bucket}")
    assert status == 2 and line.startswith(f"padir checkpoint: {bucket}: this must be a local path")


def test_compiled_programs_are_kept_in_a_bucket(tiny, bucket, emulator, run_python):
    """A second process finds all that the first has compiled."""
    decode = ["--gin.translate.decode=@Autoregressive()", "--gin.Autoregressive.max_length_offset=5"]
    model = [f"--run_dir={tiny.ar}", f"--compilation_cache={bucket}/compiled", *decode]
    code = "import sys; from padir.cli.main import main; sys.exit(main(sys.argv[1:]))"

    def written():
        with emulator.faults.happen(lambda request: None) as requests:
            done = run_python(code, "translate", *model, input=b"the dog\n")
        assert done.returncode == 0 and b"ersistent" not in done.stderr, done.stderr.decode()
        names = {request.query.get("name", "") for request in requests if request.method == "POST"}
        return done.stdout, {name for name in names if name.endswith("-cache")}

    (first, compiled), (second, more) = written(), written()
    assert first == second and compiled and not more
    assert {path.name for path in as_path(f"{bucket}/compiled").glob("*-cache")} == {
        name.rpartition("/")[2] for name in compiled
    }


def test_a_bucket_for_compiled_programs_that_is_not_there(capsys):
    status, line = said(capsys, "checkpoint", "x", "--compilation_cache=gs://no-such-bucket/compiled")
    assert status == 2 and line.startswith("padir checkpoint: gs://no-such-bucket: no such bucket; create it")


@pytest.mark.parametrize(("name", "option"), [(name, each) for name in COMMANDS for each in COMMANDS[name].local])
def test_what_writes_local_files_refuses_an_address_at_once_and_leaves_nothing_there(bucket, capsys, name, option):
    status, line = said(capsys, *name.split(), f"--{option}={bucket}/out")
    assert status == 2 and f"{bucket}/out: this must be a local path; copy it from or to the bucket" in line
    assert files_below(as_path(bucket)) == []


def test_a_storage_that_does_not_answer_has_status_74(run, emulator, capsys, quick_retries):
    for fault in (503, 429, "drop"):
        with emulator.faults.happen(lambda request, fault=fault: fault):
            status, line = said(capsys, "checkpoint", run)
        assert status == 74 and "the storage did not answer after several tries" in line
    assert main(["checkpoint", run]) == 0


def test_a_damaged_checkpoint_is_named(run, capsys):
    folder = as_path(run) / "checkpoints" / "120"
    (name, *_) = [name for name in files_below(folder) if name.startswith("params/d/")]
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    status, line = said(capsys, "checkpoint", run)
    assert status == 2
    assert line == (
        f"padir checkpoint: {folder}: cannot be restored; it is damaged ({name} has changed since it was saved)"
    )
