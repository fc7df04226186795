import jax.numpy as jnp
import numpy as np
import pytest

from padir.theory import clique, separation
from padir.theory.hitting_claims import separation_claims


def test_absorption_is_that_of_steps_taken_one_by_one():
    matrix = np.asarray(clique.independent_parallel(6, 0.3, 0.1))
    target = np.arange(7) >= 4
    alive = np.eye(7)[2]
    for _ in range(37):
        alive = np.where(target, 0.0, alive @ matrix)
    assert separation.absorbed_by(matrix, target, 37)[2] == pytest.approx(1.0 - alive.sum(), rel=1e-10)


@pytest.fixture(scope="module")
def data():
    return separation.separation(
        separation.SeparationSettings(cliques=(4, 12), deltas=(0.5,), corollary_steps=(10,), spares=(0,))
    )


def test_data_and_claims(data):
    four, twelve = data["stuck"]
    assert four["by_delta"][0]["steps"] < 1 <= twelve["by_delta"][0]["steps"]
    case = data["corollary"][0]
    assert (case["n"], case["clique"], case["k"]) == (44, 44, 44)
    # One whole step: missed with the probability of all else than R_1.
    mode = float(clique.mode_probability(44, case["coupling"], case["field"]))
    assert case["k_gibbs_missed_first_step"] == pytest.approx(1.0 - mode)
    assert all(claim.passed for claim in separation_claims(data))


def test_claims_fail_where_the_numbers_contradict_them(data):
    bad = {**data, "corollary": [{**data["corollary"][0], "failure": 0.6}]}
    assert [claim.passed for claim in separation_claims(bad)].count(False) == 1
    constant = [{**entry, "mode_probability": 1e-9} for entry in data["constant"]]
    assert [claim.passed for claim in separation_claims({**data, "constant": constant})].count(False) == 1


def test_stuck_is_seen_in_the_exact_chain_too():
    # |C| = 12, J_0 = 2: from all but the worst starts, leaving takes longer than any run.
    matrix = clique.independent_parallel(12, 3.0, 1 / 12)
    assert float(jnp.sum(matrix[0, 6:])) < 1e-100
