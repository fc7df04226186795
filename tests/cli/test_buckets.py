"""What commands say of buckets: one line, and a status by which a launcher knows whether to try again."""

import pytest

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


@pytest.mark.parametrize(("name", "option"), [(name, each) for name in COMMANDS for each in COMMANDS[name].local])
def test_what_writes_local_files_refuses_an_address_at_once_and_leaves_nothing_there(bucket, capsys, name, option):
    status, line = said(capsys, *name.split(), f"--{option}={bucket}/out")
    assert status == 2 and f"{bucket}/out: this must be a local path; copy it from or to the bucket" in line
    assert files_below(as_path(bucket)) == []


def test_a_storage_that_does_not_answer_has_status_74(run, emulator, capsys, quick_retries):
    for fault in (503, 429, "drop"):
        with emulator.faults.happen(lambda request, fault=fault: fault):
            status, line = said(capsys, "checkpoint", run)
        assert status == 74 and "the storage did not answer, tried several times" in line
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
