import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.state import StepView
from padir.theory import chains, ising, learned
from padir.theory.pseudolikelihood import uniform_law

THETA = [0.4, -0.3, 0.1, 0.8, -0.5, 0.3]


def test_one_spin_drawn_from_true_marginals_is_gibbs():
    log_p, law = ising.log_probabilities(jnp.array(THETA)), uniform_law(3, 1)
    parallel = chains.product_dynamics(chains.block_marginals(log_p, law), law.blocks)
    np.testing.assert_allclose(parallel, chains.block_dynamics(log_p, law), atol=1e-14)


def test_whole_blocks_drawn_independently_end_at_the_product_of_marginals():
    log_p, law = ising.log_probabilities(jnp.array(THETA)), uniform_law(3, 3)
    parallel = chains.product_dynamics(chains.block_marginals(log_p, law), law.blocks)
    plus = np.exp(log_p) @ (ising.spins(3) > 0)
    product = np.prod(np.where(ising.spins(3) > 0, plus, 1 - plus), axis=1)
    np.testing.assert_allclose(parallel, np.tile(product, (8, 1)), atol=1e-14)


def test_block_marginals_by_summing():
    p = np.exp(ising.log_probabilities(jnp.array(THETA)))
    plus = chains.block_marginals(jnp.log(p), uniform_law(3, 2))
    # Block {0, 1}, spin 2 at +1 (states 4..7); spin 1 is +1 in 6 and 7.
    assert float(plus[0, 5, 1]) == pytest.approx((p[6] + p[7]) / p[4:].sum())


def test_states_and_tokens_are_each_others_inverse():
    minus, plus, end = learned.MINUS_ID, learned.PLUS_ID, learned.EOS_ID
    assert learned.to_tokens(np.array(0b011), 3).tolist() == [plus, plus, minus, end]
    assert learned.to_tokens(np.array(0b011), 3, np.array(0b101), 99).tolist() == [99, plus, 99, end]
    assert learned.to_states(learned.to_tokens(np.arange(8), 3)).tolist() == list(range(8))
    assert learned.to_states(np.array([[plus, end, minus, end]])).tolist() == [8]


def test_random_blocks_have_k_positions_before_the_last_each_alike():
    rows, length, k = 6000, 5, 2
    inside = jnp.ones((rows, length), bool)
    view = StepView(jnp.zeros((rows, length), jnp.int32), jnp.zeros((rows, length)), inside, jnp.asarray(3), 9)
    chosen = np.asarray(learned.RemaskRandomBlocks((k,))(view))
    assert (chosen.sum(axis=1) == k).all()
    counts = np.unique(chosen @ (1 << np.arange(length)), return_counts=True)
    # All 6 pairs of the first 4 positions, 1000 times each.
    assert counts[0].tolist() == [3, 5, 6, 9, 10, 12]
    assert np.abs(counts[1] - 1000).max() < 5 * np.sqrt(1000 * 5 / 6)
    other = learned.RemaskRandomBlocks((k,))(view.replace(step=jnp.asarray(4)))
    assert (np.asarray(other) != chosen).any()
    # The first half of the rows is one source's, the second another's.
    halves = np.asarray(learned.RemaskRandomBlocks((1, 4))(view)).sum(axis=1).reshape(2, -1)
    assert (halves == [[1], [4]]).all()


def test_the_loop_is_its_chain_and_learns_a_little():
    settings = learned.LearnedSettings(
        spins=3, couplings=(0.5,), samples=5000, train_steps=150, batch_size=64, block_sizes=(2,), steps=(1, 5, 40),
        loop_steps=5, runs=2000,
    )  # fmt: skip
    data, claims = learned.learned(settings)
    entry = data["by_coupling"]["0.5"]["2"]
    assert max(entry["loop_deviation"]) <= 5.0
    assert claims[0].passed
    assert len(entry["loop"]) == 2 and len(entry["chain"]) == 3
    # Neighbouring k and J: there are none.
    assert not any("from one " in claim.text for claim in claims)
    assert entry["k_gibbs"][1] < entry["k_gibbs"][0]
    # Three spins alike have probability 3/4, not 1/4: independent fair ones are 1/2 away.
    p = np.exp(ising.log_probabilities(jnp.asarray(ising.clique_parameters(3, 3, 0.5, 0.0))))
    assert entry["ideal"][0] == pytest.approx(p[0] + p[7] - 0.25)
    assert jax.config.jax_enable_x64


def result(chain):
    """Data of two J and two k, whose chains end at [J][k]."""
    entry = {"ideal": [0.2], "k_gibbs": [0.1, 0.0], "loop_deviation": [1.0]}
    by_coupling = {
        str(j): {str(k): {**entry, "chain": [end], "ideal": [end]} for k, end in zip((1, 4), ends, strict=True)}
        for j, ends in enumerate(chain)
    }
    return {"leak": 0.0, "by_coupling": by_coupling}


def test_claims_follow_the_numbers():
    assert all(claim.passed for claim in learned.learned_claims(result([[0.01, 0.1], [0.02, 0.3]])))
    far = result([[0.01, 0.1], [0.2, 0.3]])
    assert [claim.text[:5] for claim in learned.learned_claims(far) if not claim.passed] == ["k = 1"]
    turned = result([[0.01, 0.3], [0.02, 0.01]])
    failed = [claim.text.split(":")[0] for claim in learned.learned_claims(turned) if not claim.passed]
    assert failed == [
        "larger k ends farther from the truth, with true marginals",
        "larger k ends farther from the truth, as learnt",
        "larger J ends farther from the truth",
    ]
    leaky = {**result([[0.01, 0.1], [0.02, 0.3]]), "leak": 0.5}
    assert sum(not claim.passed for claim in learned.learned_claims(leaky)) == 1
