"""`benchmarks/batches.py`: a picture of results at several batch sizes."""

import json
import sys


def test_the_picture_is_drawn_from_the_results(load_script, tmp_path, monkeypatch):
    script = load_script("batches")
    names = ["AR greedy", "AR beam 5", "AR 12-1 greedy", *(f"PaDIR, {steps} steps" for steps in range(1, 7))]
    paths = []
    for size in (8, 1):
        systems = {name: {"latency_ms": {"median": 1.0 + size + at}} for at, name in enumerate(names)}
        paths.append(tmp_path / f"{size}.json")
        paths[-1].write_text(json.dumps({"batch_size": size, "facts": {"device": "a GPU"}, "systems": systems}))
    monkeypatch.setattr(sys, "argv", ["batches.py", *map(str, paths), f"--output={tmp_path / 'x.png'}"])
    script.main()
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
