"""Computes the bounds of Propositions 4.1.4 and 4.1.5 and of Corollary 4.1.1."""

from __future__ import annotations

import math
from dataclasses import dataclass

from padir.errors import PadirError
from padir.theory.clique import block_overlaps


@dataclass(frozen=True)
class Clique:
    """A model (4.6) with one field for all spins in the clique and one for all spins outside.

    Attributes:
      n: N, the number of spins.
      clique: `|C|`, the number of spins in the clique, at least 2.
      coupling: J of each pair in the clique.
      field: h_i of each spin in the clique.
      outside: h_i of each spin outside the clique.
    """

    n: int
    clique: int
    coupling: float
    field: float
    outside: float = 0.0

    def __post_init__(self):
        if not 2 <= self.clique <= self.n:
            raise PadirError(f"Clique.clique = {self.clique}: must be from 2 to n = {self.n}")

    @property
    def h_clique(self) -> float:
        """h_G, the sum of the fields in the clique."""
        return self.clique * self.field

    @property
    def j_0(self) -> float:
        """J - ‖h‖₁, the largest J_0 for Assumption 4.1.5. The proofs of the propositions do not need J_0 > 0."""
        return self.coupling - self.clique * abs(self.field) - (self.n - self.clique) * abs(self.outside)

    @property
    def strongly_ferromagnetic(self) -> bool:
        """Whether Assumption 4.1.5 holds."""
        return self.h_clique > (self.n - self.clique) * abs(self.outside) and self.j_0 > 0


def others_count(clique: int, form: str = "proof") -> float:
    """The number of clique states that are in neither mode, which the constant of Proposition 4.1.4 contains.

    The proof's number is 2^c - 2, with c = `|C|`. Derivation: let K contain the whole clique, and fix the spins outside
    K. The redrawn spins outside the clique are independent of it, so sum them out. The 2^c states of the clique remain.
    Let w be their unnormalised probabilities.

    - w(all +1) / w(all -1) = exp(2 h_G), because the products of all pairs are +1 in both states.
    - Let z be another state, with m spins at +1, 0 < m < c. It has m (c - m) ≥ c - 1 pairs of unlike spins. Compared
      with all -1, each of these pairs costs 2J, and the fields gain at most 2 ‖h‖₁. Therefore w(z) / w(all -1) ≤
      exp(2 ‖h‖₁ - 2 (c - 1) J) ≤ exp(-2 (J - ‖h‖₁)) = exp(-2 J_0), as c ≥ 2 and J > 0.
    - There are 2^c - 2 such states z: all but two.

    Hence P(R_1) = w(+) / (w(+) + w(-) + Σ_z w(z)) ≥ e^{2 h_G} / (e^{2 h_G} + 1 + (2^c - 2) e^{-2 J_0}). Multiplying
    numerator and denominator by e^{2 J_0} gives the proof's fraction. The statement before the proof agrees with it.

    (4.49) prints 2c - 2 instead of 2^c - 2. This is smaller for c ≥ 3 and does not give a bound: with J_0 and h near 0
    all w are near 1, and P(R_1) is near 1 / 2^c, which is less than 1 / (2c). The statement in the main text prints a
    third form, e^(2 J_0 + 2c - 2).

    Args:
      clique: `|C|`.
      form: 'proof' for 2^c - 2, or 'printed' for 2c - 2.
    """
    return 2.0**clique - 2.0 if form == "proof" else 2.0 * clique - 2.0


def mode_reached_per_step(model: Clique, k: int, form: str = "proof") -> float:
    """1 - c_{R_1} of Proposition 4.1.4: a lower bound on P(k-Gibbs is in R_1 after one step), from any state.

    Args:
      model: the model; J_0 may be negative.
      k: spins per block, at least `|C|`.
      form: the form of the constant; see `others_count`.

    Raises:
      PadirError: k is below `|C|`.
    """
    if k < model.clique:
        raise PadirError(f"Proposition 4.1.4 needs k >= |C|, but k = {k} and |C| = {model.clique}")
    whole = block_overlaps(model.n, model.clique, k)[-1]
    # Numerator and denominator are divided by e^{2 (J_0 + h_G)}, which could overflow.
    other = math.exp(-2 * model.h_clique) + others_count(model.clique, form) * math.exp(
        min(-2 * (model.j_0 + model.h_clique), 700.0)
    )
    return float(whole / (1.0 + other))


def steps_to_mode(model: Clique, k: int, delta: float) -> int:
    """T of Proposition 4.1.4: k-Gibbs reaches R_1 within T steps with probability at least 1 - delta."""
    reached = mode_reached_per_step(model, k)
    # log c = log(1 - reached); log1p is accurate if `reached` is tiny.
    return 1 if reached >= 1.0 else max(1, math.ceil(math.log(delta) / math.log1p(-reached)))


def stuck_exponent(model: Clique) -> float:
    """c_stuck of Proposition 4.1.5; -inf if the proof does not apply because r in Hoeffding's bound is not positive."""
    radius = -1.0 + math.tanh(model.j_0) * model.clique / 2.0
    return 2.0 * radius**2 / model.clique if radius > 0 else -math.inf


def steps_stuck(model: Clique, delta: float) -> float:
    """T of Proposition 4.1.5, before it is rounded down.

    With probability at least 1 - delta, the independent parallel sampler stays at Σ x_i ≤ -2 for T steps. The bound is
    empty if T < 1. Since tanh < 1, c_stuck < 2 (c / 2 - 1)² / c with c = `|C|`. For c = 4, as in Figure 4.3, this is
    1/2. Then T < 0.83 delta < 1, so the bound is empty for every J.
    """
    return delta / 2.0 * math.exp(stuck_exponent(model))


def separating_model(delta: float, steps: int, *, spare: int = 0) -> tuple[Clique, int]:
    """The smallest model and k for Corollary 4.1.1 that Assumptions 4.1.5, 4.1.6 and 4.1.7 allow.

    Args:
      delta: the corollary's probability of failure.
      steps: M, the number of steps for which the independent parallel sampler must miss R_1.
      spare: N - k. If it is above 0, Assumption 4.1.7 determines N.

    Returns:
      The model, with fields of 0 outside the clique, and k.
    """
    clique = math.ceil(8.0 * (1.0 + math.log(4.0 * steps / delta)))
    h_clique = 0.5 * math.log(2.0 * (4.0 - delta) / delta)
    # k >= N - delta (N + 1) / ((4 - delta) |C| + delta), solved for N.
    n = clique if spare == 0 else math.ceil(spare * ((4.0 - delta) * clique + delta) / delta - 1.0)
    model = Clique(n, clique, 0.5 * clique * math.log(2.0) + h_clique, h_clique / clique)
    return model, n - spare
