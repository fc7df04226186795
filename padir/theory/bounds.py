"""The bounds of Propositions 4.1.4 and 4.1.5 and Corollary 4.1.1, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from padir.errors import PadirError
from padir.theory.clique import block_overlaps


@dataclass(frozen=True)
class Clique:
    """A model (4.6) with one field in the clique and one outside.

    Attributes:
      n: N.
      clique: |C|, at least 2.
      coupling: J.
      field: h_i in the clique.
      outside: h_i outside.
    """

    n: int
    clique: int
    coupling: float
    field: float
    outside: float = 0.0

    def __post_init__(self):
        if not 2 <= self.clique <= self.n:
            raise PadirError(f"Clique.clique = {self.clique}: it takes 2 to n = {self.n}")

    @property
    def h_clique(self) -> float:
        """h_G, the sum of the clique's fields."""
        return self.clique * self.field

    @property
    def j_0(self) -> float:
        """J - ‖h‖₁, the largest J_0 of Assumption 4.1.5; the propositions' proofs do not need it positive."""
        return self.coupling - self.clique * abs(self.field) - (self.n - self.clique) * abs(self.outside)

    @property
    def strongly_ferromagnetic(self) -> bool:
        """Whether Assumption 4.1.5 holds."""
        return self.h_clique > (self.n - self.clique) * abs(self.outside) and self.j_0 > 0


def others_count(clique: int, form: str = "proof") -> float:
    """How many clique states lie in neither mode, as it enters Proposition 4.1.4's constant.

    The proof's number, derived. Let K hold the whole clique, and the spins outside K be fixed. The redrawn spins
    outside the clique are independent of it, so sum them out; what is left are the 2^|C| states of the clique. Write w
    for their unnormalised probabilities.

    - w(all +1) / w(all -1) = exp(2 h_G): the pairs' products are all +1 in both.
    - A state z in between, m of its spins +1, 0 < m < |C|, has m (|C| - m) ≥ |C| - 1 pairs of unlike spins, each of
      which costs 2J against all -1, and wins at most 2 ‖h‖₁ in the fields. So w(z) / w(all -1) ≤
      exp(2 ‖h‖₁ - 2 (|C| - 1) J) ≤ exp(-2 (J - ‖h‖₁)) = exp(-2 J_0), as |C| ≥ 2 and J > 0.
    - There are 2^|C| - 2 such z: every state but two.

    Hence P(R_1) = w(+) / (w(+) + w(-) + Σ_z w(z)) ≥ e^{2 h_G} / (e^{2 h_G} + 1 + (2^|C| - 2) e^{-2 J_0}), and both
    times e^{2 J_0} is the proof's fraction. The statement before the proof says the same. (4.49) prints 2|C| - 2
    in the place of 2^|C| - 2, which is smaller for |C| ≥ 3 and is no bound: with J_0 and h near 0 all w are near 1, and
    P(R_1) is near 1 / 2^|C|, less than 1 / (2 |C|). (The statement in the main text prints e^(2 J_0 + 2 |C| - 2), a
    third form.)

    Args:
      clique: |C|.
      form: 'proof', or 'printed' for 2|C| - 2.
    """
    return 2.0**clique - 2.0 if form == "proof" else 2.0 * clique - 2.0


def mode_reached_per_step(model: Clique, k: int, form: str = "proof") -> float:
    """1 - c_{R_1} of Proposition 4.1.4: a lower bound on P(k-Gibbs is in R_1 after a step), from any state.

    Args:
      model: with any J_0.
      k: at least |C|.
      form: of the constant, see `others_count`.
    """
    if k < model.clique:
        raise PadirError(f"Proposition 4.1.4 takes k >= |C|, not k = {k} and |C| = {model.clique}")
    whole = block_overlaps(model.n, model.clique, k)[-1]
    # Divided by e^{2 (J_0 + h_G)}, which may overflow.
    other = math.exp(-2 * model.h_clique) + others_count(model.clique, form) * math.exp(
        min(-2 * (model.j_0 + model.h_clique), 700.0)
    )
    return float(whole / (1.0 + other))


def steps_to_mode(model: Clique, k: int, delta: float) -> int:
    """T of Proposition 4.1.4: k-Gibbs has been in R_1 after so many steps, with probability at least 1 - delta."""
    reached = mode_reached_per_step(model, k)
    # log c = log(1 - reached), which a small `reached` would round to 0.
    return 1 if reached >= 1.0 else max(1, math.ceil(math.log(delta) / math.log1p(-reached)))


def stuck_exponent(model: Clique) -> float:
    """c_stuck of Proposition 4.1.5; -inf where its proof says nothing (Hoeffding's r must be positive)."""
    radius = -1.0 + math.tanh(model.j_0) * model.clique / 2.0
    return 2.0 * radius**2 / model.clique if radius > 0 else -math.inf


def steps_stuck(model: Clique, delta: float) -> float:
    """T of Proposition 4.1.5 before it is rounded down: the independent parallel sampler stays at Σ x_i ≤ -2 so long.

    With probability at least 1 - delta; below 1 it says nothing. As tanh < 1, c_stuck < 2 (|C| / 2 - 1)² / |C|: with
    the |C| = 4 of Figure 4.3 that is 1/2, so T < 0.83 delta says nothing whatever J is.
    """
    return delta / 2.0 * math.exp(stuck_exponent(model))


def separating_model(delta: float, steps: int, *, spare: int = 0) -> tuple[Clique, int]:
    """The smallest model and k that Assumptions 4.1.5, 4.1.6 and 4.1.7 allow, for Corollary 4.1.1.

    Args:
      delta: its probability of failure.
      steps: M, how long the independent parallel sampler must miss R_1.
      spare: N - k; N is then as large as Assumption 4.1.7 wants.

    Returns:
      The model (fields outside the clique are 0) and k.
    """
    clique = math.ceil(8.0 * (1.0 + math.log(4.0 * steps / delta)))
    h_clique = 0.5 * math.log(2.0 * (4.0 - delta) / delta)
    # k >= N - delta (N + 1) / ((4 - delta) |C| + delta), solved for N.
    n = clique if spare == 0 else math.ceil(spare * ((4.0 - delta) * clique + delta) / delta - 1.0)
    model = Clique(n, clique, 0.5 * clique * math.log(2.0) + h_clique, h_clique / clique)
    return model, n - spare
