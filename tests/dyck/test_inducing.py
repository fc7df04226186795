"""Forced backtracks, the verifier's, and the texts that it objected to."""

import numpy as np
import pytest
import tiny_dyck

from padir.dyck import inducing
from padir.dyck.generator import draw_prompts, nucleus, plain
from padir.dyck.inducing import forced_backtracks, objections, sampler_of, verifiers_backtracks

CONFIG = tiny_dyck.CONFIG


@pytest.fixture(scope="module")
def generator():
    return tiny_dyck.generator()


@pytest.fixture(scope="module")
def prefixes():
    return draw_prompts(CONFIG, CONFIG.ood_grammar, "prefixes", 60)


def test_forced_backtracks(generator, prefixes, monkeypatch):
    """Without one nothing is rewritten; rewritten whole, every prefix becomes the greedy one, valid or not alike."""
    monkeypatch.setattr(inducing, "FORCED_STRIDES", (0, 6))
    found = forced_backtracks(generator, prefixes)
    assert found["rewritten greedily"]["0"] == found["drawn"]["0"]
    plainly = generator.complete(prefixes, plain(nucleus(0.9)), stream="forced/0")
    assert found["drawn"]["0"] == pytest.approx(plainly.valid.mean()) and found["prefixes"] == 60
    assert set(found["drawn"]) == {"0", "6"} and 0 <= found["greedy"] <= 1
    # With as many tokens erased as there are.
    assert found["rewritten greedily"]["6"] in (0.0, 1.0)


def test_objections_are_the_backtracks(generator, prefixes):
    """Row by row: what is found from the outputs is what the sampler counts, for each quota."""
    probe = tiny_dyck.probe()
    runs = [generator.complete(prefixes, sampler_of(quota, 2), probe, stream="x") for quota in range(4)]
    texts = objections(generator, prefixes, [run.outputs for run in runs[:-1]], probe)
    counts = np.cumsum([len(text.lengths) for text in texts])
    assert counts[0] > 20 and len(texts[2].lengths) > 0
    assert counts.tolist() == [run.backtracks.sum() for run in runs[1:]]
    # Each is rejected.
    for text in texts:
        assert (np.asarray(probe(None, None, generator.features(text))) < 0.5).all()


def test_the_table_of_quotas_and_strides(generator, prefixes, monkeypatch):
    monkeypatch.setattr(inducing, "QUOTAS", (1, 2))
    monkeypatch.setattr(inducing, "STRIDES", (2,))
    cells = verifiers_backtracks(generator, prefixes, tiny_dyck.probe())
    assert list(cells) == ["1,2", "2,2"]
    for cell in cells.values():
        assert cell["backtracks"] == cell["objections"]
        assert all(0 <= cell[name] <= 1 for name in ("accuracy", "nucleus", "greedy"))
    assert cells["1,2"]["backtracks"] <= 60 < cells["2,2"]["backtracks"] + 1


def test_a_verifier_that_never_objects(generator, prefixes, monkeypatch):
    monkeypatch.setattr(inducing, "QUOTAS", (1,))
    monkeypatch.setattr(inducing, "STRIDES", (2,))
    probe = tiny_dyck.probe()
    *before, (kernel, bias) = probe.layers
    content = probe.replace(layers=(*before, (kernel, bias + 50.0)))
    (cell,) = verifiers_backtracks(generator, prefixes, content).values()
    assert (cell["backtracks"], cell["objections"]) == (0, 0)
    assert cell["nucleus"] is cell["greedy"] is None
