import numpy as np
import pytest

from padir.errors import PadirError
from padir.topics.attention_loss import (
    BLOCKS,
    DIAGONAL,
    LITERAL,
    WORDS,
    Intervals,
    Landscape,
    enumerated,
    golden_section,
    limits,
)
from padir.topics.masked_language_modelling import MaskingConfig


@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (0.3, 2.0), (5.0, 0.2), (100.0, 7.0)])
def test_the_formula_is_the_enumerated_loss(alpha, beta):
    landscape = Landscape(4, 2, 2, convention=LITERAL)
    gamma = landscape.gamma(alpha, beta)
    assert landscape.blocks(gamma) == pytest.approx(enumerated(landscape, alpha, beta, BLOCKS), abs=1e-12)
    assert landscape.diagonal(alpha, beta) == pytest.approx(enumerated(landscape, alpha, beta, DIAGONAL), abs=1e-12)
    # Only γ matters for equal blocks, and both for the diagonal.
    assert enumerated(landscape, gamma, gamma, BLOCKS) == pytest.approx(landscape.blocks(gamma), abs=1e-12)


def test_uniform_attention():
    """(p_c + p_r) (1 - 1 / (τ v)): the part of the loss that is of words."""
    for value in (BLOCKS, DIAGONAL):
        assert enumerated(Landscape(4, 2, 2), 1.0, 1.0, value) == pytest.approx(0.2 * 0.75, abs=1e-12)
    assert Landscape(4, 2, 2, convention=LITERAL).diagonal(1.0, 1.0) == pytest.approx(0.15, abs=1e-12)


@pytest.mark.parametrize(
    "case, words, literal, loss",
    [
        ((100, 300, 20), 53.3, 58.6, 0.199703),
        ((100, 300, 80), 75.2, 84.2, 0.199809),
        ((10, 10, 3), 7.04, 7.01, 0.188336),
        ((10**6, 300, 1000), 6471, 7352, 0.199667),
    ],
)
def test_optimal_gamma(case, words, literal, loss):
    gamma, least = Landscape(*case).optimal_gamma()
    assert gamma == pytest.approx(words, rel=2e-3) and least == pytest.approx(loss, abs=1e-6)
    assert Landscape(*case, convention=LITERAL).optimal_gamma()[0] == pytest.approx(literal, rel=2e-3)
    bounds = Intervals.of(case[1], MaskingConfig())
    assert bounds.lambda_1_printed * (case[2] - 1) < gamma < bounds.lambda_2 * case[0]


def test_optimal_gamma_in_the_limit():
    expected = limits(MaskingConfig())
    assert expected == pytest.approx({WORDS: 6.5185, LITERAL: 7.4074}, rel=1e-4)
    for convention, measured in ((WORDS, 6.513), (LITERAL, 7.402)):
        gamma, _ = Landscape(10**8, 300, 10**4, convention=convention).optimal_gamma()
        assert gamma / 1e4 == pytest.approx(measured, abs=2e-3)
        assert gamma / 1e4 == pytest.approx(expected[convention], rel=0.01)


def test_optimal_attention_of_the_diagonal():
    alpha, beta, _ = Landscape(10, 10, 3).optimal_pair()
    assert (alpha, beta) == pytest.approx((0.98, 61.0), rel=0.01)
    _, beta, _ = Landscape(100, 300, 20).optimal_pair()
    assert beta == pytest.approx(1.49e4, rel=0.01)


def test_lambda_1_is_printed_otherwise_than_proved():
    bounds = Intervals.of(300, MaskingConfig())
    assert bounds.lambda_1_printed == pytest.approx(0.5773, abs=1e-4)
    assert bounds.lambda_1 == pytest.approx(0.3713, abs=1e-4)
    assert bounds.lambda_2 == pytest.approx(5866.7, abs=0.1)
    assert (bounds.lambda_3 * 20, bounds.lambda_4 * 100) == pytest.approx((52.8, 9.87e4), rel=1e-3)
    assert bounds.lambda_5 == pytest.approx(1 / (299 * 0.865))


def test_losses_broadcast():
    grid = np.logspace(-2, 2, 5)
    found = Landscape(10, 10, 3).diagonal(grid[:, None], grid[None, :])
    assert found.shape == (5, 5)
    assert found[1, 3] == pytest.approx(Landscape(10, 10, 3).diagonal(grid[1], grid[3]), abs=1e-15)


def test_golden_section():
    assert golden_section(lambda x: (x - 0.3) ** 2, -1.0, 2.0) == pytest.approx(0.3, abs=1e-6)


def test_mistakes():
    with pytest.raises(PadirError, match="Landscape.present: 4 is not from 1 to T - 1 = 3"):
        Landscape(4, 2, 4)
    with pytest.raises(PadirError, match="no 'both'; choose words or literal"):
        Landscape(4, 2, 2, convention="both")
