"""The restricted law of completions, and how far samplers are from it."""

import numpy as np
import pytest
import tiny_dyck

from padir.data.dyck import word_of
from padir.decoding.value_guided import ValueGuided
from padir.dyck import laws
from padir.dyck.generator import Completed, Prefixes, draw_prompts
from padir.dyck.judges import ActionHead
from padir.dyck.laws import BACKTRACKING, EXACT, PLAIN, WALK, compare, distance, matched, restricted_law, unmatched

CONFIG = tiny_dyck.CONFIG


@pytest.fixture(scope="module")
def head():
    """A value function that says 1/2 of everything."""
    size = CONFIG.network.embed_dim
    return ActionHead(np.zeros((size, 9), np.float32), *(np.zeros(n, np.float32) for n in (9, size)), np.ones(size))


def test_the_restricted_law_is_the_models_among_valid_outputs():
    """Of '[(' there are four completions; their chances are products of those of their tokens."""
    generator = tiny_dyck.generator()
    tokens = np.array([[*word_of("[]("), 0, 0, 0, 0]], np.int32)
    words, law = restricted_law(generator, Prefixes(tokens, np.array([3])))
    texts = ["[]()[]", "[]()()", "[]([])", "[](())"]
    assert sorted(words.tolist()) == sorted([*word_of(text), 1] for text in texts)
    chances = [np.exp(generator.read(Prefixes(word[None], np.array([7])))[1][0, 3:].sum()) for word in words]
    np.testing.assert_allclose(law, chances / np.sum(chances), rtol=1e-4)
    assert law.sum() == pytest.approx(1.0)


def test_distance_by_hand():
    """Of four outputs one is not valid: shares 1/2, 1/4, 0 and 1/4 against 1/4, 1/4, 1/2 and 0."""
    words, law = np.array([[3, 1], [4, 1], [5, 1]]), np.array([0.25, 0.25, 0.5])
    outputs = np.array([[3, 1], [3, 1], [4, 1], [6, 1]])
    found = distance(outputs, np.array([True, True, True, False]), words, law)
    assert found == pytest.approx((0.25 + 0.0 + 0.5 + 0.25) / 2)
    assert distance(outputs[3:], np.array([False]), words, law) == pytest.approx(1.0)


def test_the_first_valid_run_costs_what_all_up_to_it_do():
    def run(valid, token):
        count = np.arange(1, 4)
        outputs = Prefixes(np.full((3, 5), token), np.full(3, 5))
        return Completed(outputs, ~np.array(valid), np.array(valid), 10 * count, count, 2 * count, 0 * count, 4 * count)

    found = laws.first_valid([run([True, False, False], 3), run([True, True, False], 4)])
    assert found.outputs.tokens[:, 0].tolist() == [3, 4, 4] and found.valid.tolist() == [True, True, False]
    assert found.failed.tolist() == [False, False, True]
    assert found.queries.tolist() == [10, 40, 60] and found.verifier_calls.tolist() == [1, 4, 6]
    # 6 tokens of 10 are kept each time, for each prompt's number.
    assert found.erased.tolist() == [4, 40 - 12, 60 - 18] and found.decoder_passes.tolist() == [2, 8, 12]


def test_numbers_of_candidates_match_the_queries():
    assert list(matched(tiny_dyck.probe(), 4.0, 30.4)) == ["best of 8", "block best of 8, 2 tokens"]
    assert "best of 2" in matched(tiny_dyck.probe(), 4.0, 3.0)


def test_the_walk_has_room_for_the_shortest_prompt(head):
    walk = unmatched(tiny_dyck.generator(), tiny_dyck.probe(), head)[WALK].sampler
    assert isinstance(walk, ValueGuided) and walk.horizon == CONFIG.room - CONFIG.shortest


def test_rows_of_the_comparison(head, monkeypatch):
    """With τ at the leaves, the walk writes valid outputs or fails; distances are recomputed from the outputs."""
    every = laws.unmatched

    def some(generator, probe, head):
        return {
            name: system
            for name, system in every(generator, probe, head).items()
            if name in (PLAIN, BACKTRACKING, WALK)
        }

    budgets = []

    def none(probe, plain_queries, queries):
        budgets.append(queries)
        return {}

    monkeypatch.setattr(laws, "unmatched", some)
    monkeypatch.setattr(laws, "matched", none)
    generator = tiny_dyck.trained()
    found = compare(generator, tiny_dyck.probe(), head)
    rows = found["systems"]
    again = [f"{name}, first valid of {max(2, round(rows[WALK]['queries'] / rows[name]['queries']))}"
             for name in (PLAIN, BACKTRACKING)]  # fmt: skip
    assert list(rows) == [EXACT, PLAIN, BACKTRACKING, WALK, *again]
    for name, more in zip((PLAIN, BACKTRACKING), again, strict=True):
        assert rows[more]["valid"] > rows[name]["valid"] and rows[more]["queries"] > rows[name]["queries"]
    assert budgets == [rows[BACKTRACKING]["queries"], rows[WALK]["queries"]]
    prompts = draw_prompts(CONFIG, CONFIG.ood_grammar, "laws/prompts", CONFIG.law_prompts)
    counts = [CONFIG.grammar.number_of_words(text[:length].tolist()) for text, length in zip(*prompts, strict=True)]
    assert found["valid_outputs"] == counts
    assert rows[WALK]["valid"] + rows[WALK]["failed"] == pytest.approx(1.0)
    assert rows[WALK]["valid"] > rows[PLAIN]["valid"]
    assert rows[WALK]["distance"] < rows[PLAIN]["distance"]
    assert rows[WALK]["queries"] - rows[WALK]["erased"] <= CONFIG.room - CONFIG.shortest
    for row in rows.values():
        differences = np.array(row["distances"]) - rows[WALK]["distances"]
        assert row["distance"] == pytest.approx(np.mean(row["distances"]), abs=1e-5)
        assert row["above_walk"] == pytest.approx(differences.mean())
        error = differences.std(ddof=1) / np.sqrt(CONFIG.law_prompts)
        assert row["above_walk_standard_error"] == pytest.approx(error)
    assert rows[PLAIN]["distance_without_failures"] == pytest.approx(rows[PLAIN]["distance"])
    assert rows[WALK]["failed"] > 0
    assert rows[WALK]["distance_without_failures"] < rows[WALK]["distance"]
    # Twenty draws from π* are this far from it by chance.
    assert 0 < rows[EXACT]["distance"] < 0.3 and rows[EXACT]["valid"] == 1.0
