"""Comparisons of arrays that two programs computed, on any CPU.

Two programs that compute the same sums (another batch size, another layout, NumPy) add in another order, and each kind
of CPU has an order of its own. Their results agree up to rounding, and their choices (the likeliest token, the best
hypothesis, when to stop) agree unless the alternatives tie up to rounding. Compare with `==` only what one program
computed, or integers.
"""

import jax
import numpy as np


def assert_close(found, expected, tolerance, name=""):
    """That each array of two trees agrees, up to `tolerance` times the largest magnitude in the expected array.

    An element of a sum is as exact as the sum's largest terms are, not as its own size would suggest.

    Args:
      found: an array, or a tree of arrays.
      expected: the same, or a list of numbers that stands for one array.
      tolerance: relative to the largest magnitude of each array.
      name: said in front of an array's path where it differs.
    """
    if isinstance(expected, list) and all(np.ndim(element) == 0 for element in expected):
        expected = np.asarray(expected, np.float64)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, theirs), ours in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        theirs = np.asarray(theirs, np.float64)
        bound = tolerance * np.abs(theirs).max(initial=0.0, where=np.isfinite(theirs))
        message = f"{name}{jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=0, atol=bound, err_msg=message)


def assert_same(found, expected, rows=slice(None), tolerance=3e-5):
    """That two decodes give the same `Hypotheses` up to rounding.

    Hypotheses of one source tie if their scores differ by less than rounding: another program, or the same one on
    another CPU, may put either first. So the hypotheses of a tie are compared in any order, all others in theirs.

    Args:
      found: `Hypotheses` of the sources `rows` alone.
      expected: `Hypotheses` of all sources.
      rows: which sources of `expected`: a slice, indices or a mask.
      tolerance: of scores, relative to the largest.
    """
    scores = np.asarray(expected.scores)[rows]
    assert_close(found.scores, scores, tolerance, "scores")
    rounding = tolerance * np.abs(scores).max(initial=0.0, where=np.isfinite(scores))
    ours, theirs = _hypotheses(found), _hypotheses(expected)
    theirs = [theirs[row] for row in np.arange(len(theirs))[rows]]
    for row, of_row in enumerate(scores):
        breaks = np.flatnonzero(np.diff(of_row) < -rounding) + 1
        for tie in np.split(np.arange(len(of_row)), breaks):
            assert sorted(ours[row][i] for i in tie) == sorted(theirs[row][i] for i in tie), f"row {row}, ranks {tie}"


def steady(decode, params, change=1e-5):
    """Which sources are decoded the same when every weight changes a little: a mask [B].

    Where choices hang on less than that, two programs may rightly make different ones, after which all that follows is
    different. A hundred times the rounding of float32 is a margin that no CPU and no order of a sum uses up.

    Args:
      decode: parameters → `Hypotheses`.
      params: parameters.
      change: of each weight, relative, drawn at random. All are changed one way and then the other, so that a tie is
        broken in either direction.
    """
    plain = _hypotheses(decode(params))
    generator = np.random.default_rng(0)
    noise = jax.tree.map(lambda x: (change * generator.uniform(-1, 1, x.shape)).astype(np.float32), params)
    same = np.ones(len(plain), bool)
    for sign in (1, -1):
        moved = jax.tree.map(lambda x, n, sign=sign: x * (1 + sign * n) if x.dtype.kind == "f" else x, params, noise)
        other = _hypotheses(decode(moved))
        same &= [sorted(one) == sorted(two) for one, two in zip(plain, other, strict=True)]
    return same


def _hypotheses(decoded):
    """For each source, of each hypothesis: (length, steps, tokens)."""
    fields = (decoded.predicted_lengths, decoded.steps_run, decoded.tokens)
    lengths, steps, tokens = (np.asarray(field).tolist() for field in fields)
    return [list(zip(*of_row, strict=True)) for of_row in zip(lengths, steps, tokens, strict=True)]
