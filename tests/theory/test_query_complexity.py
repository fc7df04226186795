"""Expected queries and laws of section 3.1, against the numbers derived for them and against plain enumeration."""

import itertools

import jax
import numpy as np
import pytest

from padir.data import dyck as grammar
from padir.errors import PadirError
from padir.theory import query_complexity as qc
from padir.theory.dyck_words import completions, dyck_tree, grammar_law, number_of_words, tokenwise_queries
from padir.theory.level_laws import block_law, exact_values, full_tree, target_law, total_variation
from padir.theory.measured import run_samplers
from padir.theory.value_guided import random_tree


def test_tokenwise_and_blockwise_rejection_by_enumeration():
    """The law and queries of blocks of 1, 2 and 4 tokens, computed block by block for every path."""
    random = np.random.default_rng(0)
    tree = random_tree(random, 2, 4)
    values = [random.random(size) for size in tree.sizes()]

    def chance(prefix, block):
        probability = 1.0
        for height in range(len(prefix), len(prefix) + len(block)):
            index = int("".join(map(str, (prefix + block)[: height + 1])), 2)
            probability *= tree.chances[height][index]
        return probability

    for size in (1, 2, 4):
        law, queries = {(): 1.0}, 0.0
        for start in range(0, 4, size):
            after = {}
            for prefix, reached in law.items():
                texts = [prefix + block for block in itertools.product((0, 1), repeat=size)]
                weights = [
                    chance(prefix, text[start:]) * values[start + size][int("".join(map(str, text)), 2)]
                    for text in texts
                ]
                queries += reached * size / sum(weights)
                after |= {text: reached * w / sum(weights) for text, w in zip(texts, weights, strict=True)}
            law = after
        found = block_law(tree, values, size)
        np.testing.assert_allclose(found.outputs, [law[text] for text in sorted(law)], atol=1e-15)
        assert found.queries == pytest.approx(queries) and found.stuck == pytest.approx(0, abs=1e-12)


def test_values_and_the_target_law():
    tree = full_tree(2, 2)
    outcome = [np.zeros(1), np.zeros(2), np.array([0.0, 1.0, 1.0, 2.0])]
    assert [v.tolist() for v in exact_values(tree, outcome)] == [[1.0], [0.5, 1.5], [0.0, 1.0, 1.0, 2.0]]
    assert target_law(tree, outcome)[2].tolist() == [0, 0.25, 0.25, 0.5]
    assert total_variation([np.array([0.5, 0.5])], [np.array([0.2, 0.8])]) == pytest.approx(0.3)
    assert tree.ancestors(2, 1).tolist() == [0, 0, 1, 1]


def test_a_dead_end_counts_as_stuck():
    tree = full_tree(2, 2)
    verifier = [np.ones(1), np.ones(2), np.array([0.0, 0.0, 1.0, 0.0])]
    found = block_law(tree, verifier)
    assert found.outputs.tolist() == [0, 0, 0.5, 0] and found.stuck == 0.5
    # One query for the first token; two for the second, after 1 only.
    assert found.queries == 1 + 0.5 * 2


@pytest.mark.parametrize("length", range(1, 13))
def test_proposition_3_1_1(length):
    found = qc.one_answer(length, (2, 4), (1, 4))
    for block, queries in found["queries"].items():
        assert queries == length * 2 ** int(block)
    assert {1, length} <= set(map(int, found["queries"]))
    for one in found["best_of"]:
        chance = (1 - (1 - 2.0 ** -one["block"]) ** one["n"]) ** (length / one["block"])
        assert one["valid"] == pytest.approx(chance, abs=1e-12) and one["queries"] == one["n"] * length


def test_proposition_3_1_1_for_8_letters():
    assert qc.one_answer(8, (2, 4), (1,))["queries"] == {"1": 16.0, "2": 32.0, "4": 128.0, "8": 2048.0}


def test_the_samplers_run():
    """In float32, although theory computes in float64; a few cases, because each sampler is compiled."""
    found = run_samplers((1, 2, 4), (2,), (2, 4), 100, seed=1)
    assert [(one["length"], one["block"]) for one in found["rejection"]] == [
        (1, 1),
        (2, 2),
        (4, 4),
        (2, 1),
        (4, 1),
        (4, 2),
    ]
    for one in found["rejection"]:
        assert abs(one["mean"] - one["length"] * 2.0 ** one["block"]) < 5 * one["standard_error"]
        assert one["valid"] == 1.0
    for one in found["best_of"]:
        chance = (1 - 0.75**4) ** (one["length"] / 2)
        assert abs(one["valid"] - chance) < 5 * np.sqrt(chance * (1 - chance) / 100)
        assert one["queries"] == 4 * one["length"]
    assert jax.config.read("jax_enable_x64")


@pytest.mark.parametrize(("length", "variation"), [(1, 0.0), (2, 1 / 6), (3, 0.107143), (6, 0.015377)])
def test_proposition_3_1_2(length, variation):
    tree, count = full_tree(2, length), 2**length
    outcome = qc.at_the_end(tree, np.arange(count) < count - 1)
    law = block_law(tree, qc.perfect_verifier(tree, outcome)).outputs
    stated = [2.0**-length] * (count - 2) + [2.0 ** -(length - 1), 0.0]
    np.testing.assert_allclose(law, stated, atol=1e-15)
    found = qc.one_zero(length)
    assert found["total_variation"] == pytest.approx(variation, abs=5e-7)
    assert found["formula"] == pytest.approx(variation, abs=5e-7)
    assert found["law_difference"] == 0.0 and found["everywhere_difference"] == 2.0**-length


def test_theorem_3_1_1():
    random = np.random.default_rng(0)
    minimax = [1, 2.25, 4.375, 8.4375, 16.46875, 32.484375]
    assert [qc.minimax_queries(2 ** (d - 1)) for d in range(2, 8)] == minimax
    for length in range(2, 7):
        found = qc.hidden(length, 500, 8, random)
        assert found["recursion"] == pytest.approx(minimax[length - 2], abs=1e-12)
        assert abs(found["measured"][0] - found["formula"]) <= 5 * found["measured"][1] + 1e-12
        assert found["printed"] == 2 ** (length - 1) > found["formula"]
        if length <= 4:
            assert found["orders"] == pytest.approx([minimax[length - 2]] * 2)


def test_the_hidden_prefix_alone_ends_evenly():
    chances = qc.even_after(3, 2)
    ends = [format(text, "03b") for text in np.flatnonzero(chances)]
    assert ends == ["001", "010", "101", "111"] and set(chances) == {0.0, 1.0}


@pytest.mark.parametrize("length", [2, 4, 6])
def test_a_verifier_of_the_set_alone_is_not_enough(length):
    found = qc.hidden(length, 2, 2, np.random.default_rng(0))
    assert found["stuck"] == 1 - 2.0 ** (1 - length)
    assert found["answers_by_calls"] == 2.0 ** (1 - length)
    assert found["aware_answers_by_calls"] == 1.0
    assert found["aware_queries"] == [2 * length - 1] * 2


def test_the_knapsack_of_the_specification():
    found = qc.knapsack((3, 34, 4, 12, 5, 2), 9, 20, np.random.default_rng(0))
    assert (found["solutions"], found["rejection"], found["tokenwise"]) == (2, 192, 11)
    fewest, most = found["tokenwise_per_letter"]
    assert 1 <= fewest <= most <= 2 and found["greedy_errors"] == 0
    # 3 + 4 + 2 and 4 + 5.
    assert np.flatnonzero(qc.reachability((3, 34, 4, 12, 5, 2), 9)[-1]).tolist() == [0b001010, 0b101001]
    assert qc.greedy_fills((1, 1, 2, 4), 3) and not qc.greedy_fills((2, 3, 6), 4)
    # Not superincreasing: 4 + 4 is missed after 5.
    assert not qc.greedy_fills((4, 4, 5), 8)


DYCK = {
    4: (8, 128, 10.6667, 0.166667, 1.333),
    6: (40, 614.4, 15.0370, 0.266667, 2.222),
    8: (224, 2340.571, 19.27572, 0.358907, 4.148),
    12: (8448, 23831.27, 27.56125, 0.497132, 17.38),
}


@pytest.mark.parametrize("length", DYCK)
def test_dyck_words(length):
    found = qc.dyck(length)
    words, rejection, tokenwise, variation, ratio = DYCK[length]
    assert found["words"] == found["words_formula"] == words == completions(length)[0][0]
    assert found["rejection"] == pytest.approx(rejection, abs=0.005)
    assert found["rejection_formula"] == pytest.approx(found["rejection"])
    assert found["tokenwise"] == pytest.approx(tokenwise, abs=5e-5)
    assert found["tokenwise_by_depth"] == pytest.approx(found["tokenwise"])
    assert found["total_variation"] == pytest.approx(variation, abs=5e-7)
    assert found["largest_ratio"] == pytest.approx(ratio, abs=5e-3)
    assert found["grammar_sum"] == pytest.approx(1.0, abs=1e-12)


def test_dyck_words_of_32_letters():
    assert number_of_words(32) == 2_317_200_261_120 == grammar.Dyck(32).number_of_words() == completions(32)[0][0]
    assert 32 * 4.0**32 / number_of_words(32) == pytest.approx(2.54745e8, abs=500)
    assert tokenwise_queries(32) == pytest.approx(67.93944, abs=5e-6)


@pytest.mark.parametrize(
    ("length", "total", "variation"), [(4, 0.375, 0.167), (6, 0.3125, 0.225), (8, 0.2734375, 0.259)]
)
def test_equation_3_4(length, total, variation):
    found = qc.dyck(length)
    assert found["printed_sum"] == pytest.approx(total, abs=1e-12)
    assert found["printed_total_variation"] == pytest.approx(variation, abs=5e-4)


def test_the_grammar_is_that_of_the_data():
    """Both list the words and their probabilities in their own way."""
    of_data = grammar.Dyck(6, p=0.3, q=0.6)
    words = np.array(of_data.completions(()))
    np.testing.assert_allclose(
        np.sort(grammar_law(dyck_tree(6), 0.3, 0.6)), np.sort(np.exp(of_data.log_probability(words))), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (2, 17)}, "QueryComplexitySettings.lengths"),
        ({"lengths": (2, 1)}, "must be ascending numbers"),
        ({"runs": 1}, "QueryComplexitySettings.runs = 1: must be at least 2"),
        ({"knapsack": ()}, "QueryComplexitySettings.knapsack"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        qc.QueryComplexitySettings(**options)
