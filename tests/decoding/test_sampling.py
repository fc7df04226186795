"""From logits to tokens."""

import jax.numpy as jnp
import numpy as np

from padir.decoding.sampling import forbid_reserved, greedy
from padir.types import TokenIds


def test_only_pieces_other_than_padding_are_allowed():
    ids = TokenIds(num_pieces=4, extra_ids=3)
    logits = forbid_reserved(jnp.zeros((2, ids.vocab_size)), ids)
    assert ids.vocab_size == 128 and ids.mask_id == 6
    assert (logits[:, 1:4] == 0).all(), "EOS, UNK and the pieces after them"
    assert np.isneginf(logits[:, 0]).all() and np.isneginf(logits[:, 4:]).all()


def test_greedy_by_hand():
    tokens, log_probs = greedy(jnp.log(jnp.array([[0.2, 0.5, 0.3], [4.0, 2.0, 2.0]])))
    assert tokens.tolist() == [1, 0] and tokens.dtype == jnp.int32
    np.testing.assert_allclose(log_probs, np.log([0.5, 0.5]), rtol=1e-5)


def test_forbidden_tokens_take_no_probability():
    _, log_probs = greedy(jnp.array([-jnp.inf, 1.0, 1.0]))
    np.testing.assert_allclose(log_probs, np.log(0.5), rtol=1e-6)


def test_the_first_of_equals_wins():
    assert greedy(jnp.zeros((1, 5)))[0].tolist() == [0]


def test_bfloat16_logits_are_normalised_in_float32():
    _, log_probs = greedy(jnp.zeros((1, 1000), jnp.bfloat16))
    assert log_probs.dtype == jnp.float32
    np.testing.assert_allclose(log_probs, -np.log(1000), rtol=1e-6)
