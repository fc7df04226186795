"""The command on a tiny model, held against direct passes of its network."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import padir
from padir.analysis import pictures
from padir.analysis.attention import attention, traced, written
from padir.analysis.pairs import pairs_of
from padir.data.records import PreparedSet
from padir.decoding.initial import StartWithMask
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.nn.masks import length_mask
from padir.types import EOS_ID


@pytest.fixture(scope="module")
def examples(tiny):
    test = PreparedSet.open(tiny.data).split("test")
    return test.read(range(len(test)))


@pytest.fixture(scope="module")
def translator(tiny):
    return padir.load(tiny.padir)


def direct(translator, sources, read):
    """Last layer's (self-, cross-attention) of a plain forward pass in which the decoder reads `read` [B, L]."""
    encoded, _ = translator.model.encode(translator.params, jnp.asarray(sources))
    network = translator.model.module(translator.params).network
    output = network.decode(read, network.plan(encoded, jnp.asarray(sources), read))
    return output.self_attentions[:, -1], output.cross_attentions[:, -1], network.logits(output.hidden)


def test_one_step_is_a_pass_over_masks(translator, examples):
    """One step reads MASK everywhere, EOS at the end: so it can be computed without any decoding."""
    decode = traced(Refinement(num_steps=1, target_buckets=()))
    batches = list(written(translator, examples[:8], decode, 8))
    assert len(batches) == 1
    batch = batches[0]
    assert sorted(map(bytes, (row[row != 0] for row in batch.sources))) == sorted(
        bytes(np.asarray(e.source_ids, np.int32)) for e in examples[:8]
    )
    lengths = jnp.asarray(batch.inside.sum(1))
    read = StartWithMask()(None, lengths, 32, translator.model.ids)
    self_weights, cross_weights, logits = direct(translator, batch.sources, read)
    inside = np.asarray(length_mask(lengths, 32))
    assert (batch.inside == inside).all()
    both = inside[:, None, :, None] & inside[:, None, None]
    assert np.abs((batch.self_attentions - self_weights) * both).max() < 1e-5
    assert np.abs((batch.cross_attentions - cross_weights) * inside[:, None, :, None]).max() < 1e-5
    allowed = np.asarray(logits)[..., : translator.model.ids.num_pieces].copy()
    allowed[..., 0] = -np.inf
    assert (np.where(inside, allowed.argmax(-1), 0) == batch.tokens).all()


def test_shortcuts_that_have_no_trace_are_left_out(translator, examples):
    """Those of decode/lengths_5.gin, for instance."""
    ranking = {"num_hypotheses": 2, "rank": RankByLogProbability(length_weight=0.1), "target_buckets": ()}
    plain, shortcut = (
        list(
            written(translator, examples[:8], translator.checked(traced(Refinement(num_steps=1, **ranking, **more))), 8)
        )
        for more in ({}, {"likeliest_first": True, "compact_rows": True})
    )
    np.testing.assert_array_equal(shortcut[0].tokens, plain[0].tokens)


def test_of_several_steps_it_is_the_one_that_wrote(translator, examples):
    """Rows stop at different steps; each one's attention is of what it last read, not of later passes of others."""
    decode = traced(Refinement(num_steps=4, num_hypotheses=2, target_buckets=()))
    (batch,) = written(translator, examples[:8], decode, 8)
    order = sorted(range(8), key=lambda index: len(examples[index].source_ids))
    found = translator.decode_ids([examples[index].source_ids for index in order], decode)
    steps = found.steps_run[:8, 0]
    read = np.stack([found.trace.inputs[step - 1, row, 0] for row, step in enumerate(steps)])
    assert len(set(steps.tolist())) > 1
    assert (batch.tokens == found.tokens[:8, 0]).all()
    self_weights, cross_weights, _ = direct(translator, batch.sources, jnp.asarray(read))
    inside = batch.inside[:, None, :, None]
    assert np.abs((batch.self_attentions - self_weights) * inside * batch.inside[:, None, None]).max() < 1e-5
    assert np.abs((batch.cross_attentions - cross_weights) * inside).max() < 1e-5


@pytest.fixture(scope="module")
def result(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    given = attention(
        run_dir=str(tiny.padir),
        data_dir=str(tiny.data),
        output_dir=str(folder),
        decode=Refinement(num_steps=1, target_buckets=()),
        num_examples=24,
        batch_size=8,
        permutations=300,
    )
    return folder, given


def test_the_result(result, translator, examples):
    """Batches of 8 give what one batch of 24 gives; counts are those of the tokens."""
    folder, given = result
    assert json.loads((folder / "attention.json").read_text(encoding="utf-8")) == given
    (batch,) = written(translator, examples[:24], traced(Refinement(num_steps=1, target_buckets=())), 24)
    rows = []
    for tokens, inside in zip(batch.tokens, batch.inside, strict=True):
        row = tokens[inside].tolist()
        rows.append(row[: row.index(EOS_ID)] if EOS_ID in row else row)
    repeats = [sum(a == b for a, b in zip(row, row[1:], strict=False)) for row in rows]
    assert given["counts"] == {
        "sentences": 24,
        "sentences_that_stutter": sum(count > 0 for count in repeats),
        "stutter_pairs": sum(repeats),
        "other_pairs": sum(max(len(row) - 1, 0) for row in rows) - sum(repeats),
    }
    assert given["counts"]["stutter_pairs"] > 5 and given["counts"]["other_pairs"] > 5
    pairs = pairs_of(batch.tokens, batch.self_attentions, batch.cross_attentions, batch.inside, batch.sources != 0)
    for name in ("self_max", "tv_avg", "cross_top1"):
        values = pairs.values[name].astype(np.float64)
        moments = given["statistics"][name]
        assert moments["stutter"]["mean"] == pytest.approx(values[pairs.stutters].mean(), abs=1e-5)
        assert moments["no_stutter"]["sd"] == pytest.approx(values[~pairs.stutters].std(ddof=1), abs=1e-5)
    assert given["facts"]["device"] and "drop_repeats=False" in given["decode"]
    assert {path.name for path in folder.iterdir()} == {
        "attention.json",
        "attention.md",
        "attention_1.png",
        "attention_2.png",
    }
    assert (folder / "attention_1.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_refused(tiny, tmp_path):
    given = {"run_dir": str(tiny.padir), "data_dir": str(tiny.data), "output_dir": str(tmp_path / "out")}
    with pytest.raises(PadirError, match=r"ar: is an autoregressive model; give the run_dir of a PaDIR model"):
        attention(**given | {"run_dir": str(tiny.ar)})
    for name, value in (("num_examples", 0), ("permutations", 0), ("pictures", -1)):
        with pytest.raises(PadirError, match=f"analyze_attention.{name}: {value} must be at least"):
            attention(**given, **{name: value})
    with pytest.raises(PadirError, match="rewrite_only_remasked the two tokens of a pair may be written by different"):
        attention(**given, decode=Refinement(rewrite_only_remasked=True))
    with pytest.raises(PadirError, match="t5x_compat always drops repeats"):
        attention(**given, decode=Refinement(t5x_compat=True))
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation, test"):
        attention(**given, split="dev")
    assert not (tmp_path / "out").exists()


def test_nothing_to_compare(tiny, tmp_path, monkeypatch):
    """Where no pair repeats a token, one line says what to do."""
    from padir.analysis import attention as module

    def without_stutter(*arguments):
        found = pairs_of(*arguments)
        return type(found)(found.values, np.zeros_like(found.stutters), found.sentences)

    monkeypatch.setattr(module, "pairs_of", without_stutter)
    with pytest.raises(PadirError, match=r"of the \d+ pairs of adjacent tokens in 8 translations of test, none repeat"):
        attention(
            run_dir=str(tiny.padir),
            data_dir=str(tiny.data),
            output_dir=str(tmp_path / "out"),
            decode=Refinement(num_steps=1, target_buckets=()),
            num_examples=8,
            batch_size=8,
        )


def test_heat_maps(figures, tmp_path):
    """Means over heads, tokens as labels, those that stutter coloured, both cells between them framed."""
    self_weights = np.array([[[0.5, 0.5], [1.0, 0.0]], [[0.1, 0.9], [0.0, 1.0]]])
    cross_weights = np.array([[[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]])
    pictures.heat_maps(
        tmp_path / "x.png", self_weights, cross_weights, ["▁a", "▁a"], ["▁b", "$", "</s>"], np.array([True])
    )
    (figure,) = figures
    left, right = figure.axes[:2]
    assert np.allclose(left.images[0].get_array(), [[0.3, 0.7], [0.5, 0.5]])
    assert np.allclose(right.images[0].get_array(), cross_weights[0])
    assert [label.get_text() for label in right.get_xticklabels()] == ["_b", r"\$", "</s>"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["_a", "_a"]
    assert {label.get_color() for label in left.get_yticklabels()} == {"#D55E00"}
    assert {label.get_color() for label in right.get_xticklabels()} == {"black"}
    frames = [(line.get_xdata().mean(), line.get_ydata().mean()) for line in left.lines]
    assert len(frames) == 2 and not right.lines
    assert [list(line.get_xdata()[:2]) for line in left.lines] == [[0.5, 1.5], [-0.5, 0.5]]
