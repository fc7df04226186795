"""`padir train --describe` at the paper's size on eight devices, against figures worked out by hand."""

import re

import pytest

from padir.cli import main as cli

ARGUMENTS = ["train", "--gin_file=runs/wmt14_de_en_padir.gin", "--describe"]
MILLION = 66_997_760  # Parameters of the paper's model.
# Vectors are whole everywhere: 6 encoder layers with 2 norms, 6 decoder layers with 4, the norm of each stack.
NORMS = (6 * 2 + 6 * 4 + 2) * 512
RELATIVE = 2 * 8 * 32


@pytest.fixture
def describe(tmp_path, capsys):
    """Returns describe(*arguments) -> lines printed."""

    def run(*arguments, status=0):
        places = [f"--gin.DATA_DIR='{tmp_path}/data'", f"--gin.RUN_DIR='{tmp_path}/run'"]
        assert cli.main([*ARGUMENTS, *places, *arguments]) == status
        assert not list(tmp_path.iterdir()), "it writes nothing"
        captured = capsys.readouterr()
        return captured.out.splitlines() if status == 0 else captured.err

    return run


def row(lines, name):
    (found,) = [re.split(r"  +", line.strip()) for line in lines if line.startswith(name + " ")]
    return found[1:]


def test_data_parallelism_holds_everything_everywhere(describe):
    lines = describe()
    assert lines[0] == "PadirModel, preset 'data' on 8 cpu device(s): replica 1, data 8, model 1"
    table = f"{4 * 32_128 * 512:,}"
    assert row(lines, "network/token_embedder/embedding") == ["[32128, 512]", "float32", "(-, -)", table]
    assert row(lines, "parameters, total") == [f"{MILLION:,}", f"{4 * MILLION:,}"]


def test_fsdp_holds_an_eighth(describe):
    lines = describe("--gin.Layout.preset='fsdp'")
    assert row(lines, "network/encoder/layers/5/mlp/wo/weight") == [
        *("[512, 2048]", "float32", "(data, -)"),
        f"{4 * 512 * 2048 // 8:,}",
    ]
    whole = NORMS + RELATIVE
    assert row(lines, "parameters, total") == [f"{MILLION:,}", f"{4 * (whole + (MILLION - whole) // 8):,}"]


def test_tensor_and_fsdp_with_an_average(describe):
    lines = describe(
        "--gin.Layout.preset='fsdp+tensor'", "--gin.Layout.model=2", "--gin.OptimizerConfig.ema_decay=0.999"
    )
    assert lines[0].endswith("replica 1, data 4, model 2")
    assert row(lines, "network/decoder/layers/0/self_attention/out/weight")[2:] == [
        "(data, model)",
        f"{4 * 512 * 512 // 8:,}",
    ]
    # Split over data only: positions and lengths. Over model only: relative positions.
    positions = (256 + 128) * 512
    split = MILLION - NORMS - RELATIVE - positions
    held = 4 * (NORMS + RELATIVE // 2 + positions // 4 + split // 8)
    assert row(lines, "parameters, total") == [f"{MILLION:,}", f"{held:,}"]
    assert row(lines, "average of the parameters, total") == [f"{MILLION:,}", f"{held:,}"]
    optimizer = int(row(lines, "optimizer state, total")[1].replace(",", ""))
    assert row(lines, "training state") == [f"{2 * held + optimizer:,}"]


def test_sizes_that_do_not_divide(describe):
    message = describe(
        "--gin.Layout.preset='tensor'", "--gin.Layout.model=8", "--gin.NetworkConfig.num_heads=6", status=2
    )
    assert "axis 'heads' of size 6 does not divide evenly over 8 devices of mesh axis model" in message
