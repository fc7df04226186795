"""Training in a bucket without a cache, resumed; what is killed is in test_train_killed.py."""

import jax
import numpy as np
import pytest
from tiny_runs import Tiny

from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file
from padir.files.paths import as_path, files_below
from padir.metrics.writers import read_metrics
from padir.training.train import Cadence

PLAN = {"kind": "ar", "cadence": Cadence(log=3, evaluate=6, checkpoint=3)}


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    """What nine steps on disk end with."""
    return jax.device_get(tiny.train(tmp_path_factory.mktemp("straight") / "run", num_steps=9, **PLAN))


@pytest.fixture
def there(tiny, bucket):
    """The tiny set in a bucket."""
    for name in files_below(tiny.data):
        copy_file(tiny.data / name, f"{bucket}/data/{name}")
    return Tiny(f"{bucket}/data", None, None)


def test_a_run_in_a_bucket_is_the_same_as_on_disk(tiny, there, bucket, emulator, tmp_path, capsys):
    straight = tiny.train(tmp_path / "run", num_steps=12, **PLAN)
    with emulator.faults.happen(lambda request: None) as requests:
        there.train(f"{bucket}/run", num_steps=12, **PLAN)
    sent = [request.query.get("name", "") for request in requests if request.method == "POST"]
    # What TensorBoard shows is there before the checkpoint up to which it would not be written again.
    first = {what: next(n for n, name in enumerate(sent) if what in name) for what in ("tfevents", "/3/params")}
    assert first["tfevents"] < first["/3/params"]
    # The last two checkpoints are lost, as after a kill: their steps are trained and recorded again.
    for step in (9, 12):
        as_path(f"{bucket}/run/checkpoints/{step}/commit_success.txt").unlink()
    capsys.readouterr()
    resumed = there.train(f"{bucket}/run", num_steps=12, **PLAN)
    said = capsys.readouterr().err
    assert f"{bucket}/run: resuming at step 6 of 12" in said
    assert said.count("incomplete, because its save was killed; removed") == 2
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed), jax.device_get(straight))

    def losses(run):
        lines = read_metrics(f"{run}/metrics/metrics.jsonl")
        return [(line["step"], line["train/loss"], line.get("validation/loss")) for line in lines]

    assert losses(f"{bucket}/run") == losses(tmp_path / "run")
    local, remote = (files_below(as_path(run)) for run in (tmp_path / "run", f"{bucket}/run"))
    wanted = {name for name in local if "/" not in name}
    assert wanted == {name for name in remote if "/" not in name} and "train.json" in wanted
    assert sum("tfevents" in name for name in remote) == 2
    with pytest.raises(PadirError, match="was trained to step 12 with other settings"):
        there.train(f"{bucket}/run", num_steps=12, seed=1, **PLAN)


@pytest.mark.parametrize("written", ["metrics.jsonl.segments", "checkpoints/6/SHA256SUMS", "6/params/_METADATA"])
def test_a_storage_that_fails_ends_training_which_then_goes_on(
    there, straight, bucket, emulator, quick_retries, written
):
    def fails(request):
        return 503 if request.method == "POST" and written in request.query.get("name", "") else None

    with emulator.faults.happen(fails), pytest.raises(StorageError, match="did not answer") as caught:
        there.train(f"{bucket}/run", num_steps=9, **PLAN)
    assert caught.value.status == 74
    resumed = there.train(f"{bucket}/run", num_steps=9, **PLAN)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed), straight)
    steps = [line["step"] for line in read_metrics(f"{bucket}/run/metrics/metrics.jsonl")]
    assert steps == [3, 6, 9]
