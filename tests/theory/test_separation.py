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
        separation.SeparationSettings(cliques=(4, 16), deltas=(0.5,), corollary_steps=(10,), spares=(0,))
    )


def failed(data):
    """First words of the claims that fail."""
    return [claim.text.split(":")[0] for claim in separation_claims(data) if not claim.passed]


# Statements that do not hold as the chapter prints them.
KNOWN = [
    "Proposition 4.1.5 covers at least one step for |C| = 4, as in Figure 4.3",
    "Proposition 4.1.4 with 2|C| - 2, as (4.49) prints it, is a bound",
]


def test_data_and_claims(data):
    four, sixteen = data["stuck"]
    assert four["by_delta"][0]["steps"] < 1 <= sixteen["by_delta"][0]["steps"]
    case = data["corollary"][0]
    assert (case["n"], case["clique"], case["k"]) == (44, 44, 44)
    # One whole step: missed with the probability of all else than R_1.
    mode = clique.mode_probability(44, case["coupling"], case["field"])
    assert case["k_gibbs_missed_first_step"] == pytest.approx(1.0 - mode)
    assert failed(data) == KNOWN
    assert all(claim.reason for claim in separation_claims(data) if not claim.passed)


def test_claims_fail_where_the_numbers_contradict_them(data):
    bad = {**data, "corollary": [{**data["corollary"][0], "failure": 0.6}]}
    assert set(failed(bad)) - set(KNOWN) == {"Corollary 4.1.1, 1 cases"}
    constant = [{**entry, "mode_probability": 1e-9} for entry in data["constant"]]
    assert set(failed({**data, "constant": constant})) - set(KNOWN) == {
        "Proposition 4.1.4 with 2^|C| - 2 in its constant is a bound"
    }
    stuck = [{**entry, "by_delta": [{"delta": 0.5, "steps": 3.0, "left": 0.6}]} for entry in data["stuck"]]
    assert "Proposition 4.1.5 for these cliques" in failed({**data, "stuck": stuck})


def test_stuck_is_seen_in_the_exact_chain_too():
    # |C| = 12, J_0 = 2: from all but the worst starts, leaving takes longer than any run.
    matrix = clique.independent_parallel(12, 3.0, 1 / 12)
    assert float(jnp.sum(matrix[0, 6:])) < 1e-100
