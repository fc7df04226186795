"""One translated text, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from padir.decoding.queries import Queries
from padir.decoding.state import Trace
from padir.inference import page
from padir.inference.document import document
from padir.inference.origin import Origin


@dataclass(frozen=True)
class Translation:
    """One translated text.

    Attributes:
      text: the best hypothesis, detokenised.
      score: what it was ranked by: its log-probability in nats, divided by length^alpha; that of the last step, or what
        a rescorer or ranker says.
      steps_run: the number of decoder passes until it stopped changing. An autoregressive model does one per token.
      predicted_length: the number of target tokens, EOS included.
      hypotheses: all hypotheses as (text, score), best first.
      cut_off: whether an autoregressive model, which may be a verifier, reached its length limit before EOS.
      hypotheses_cut_off: the same of each hypothesis.
      rounds: of verified decoding, how many of the decoder passes were the verifier's; otherwise None.
      queries: of generation under a verifier, what all samples of this text cost together, as numbers of type int;
        otherwise None.
      failed: whether generation under a verifier found no output; the text is as far as it came. Under a constraint,
        whether the source's length limit has no room for an output that obeys; the text is then empty.
      constraint_met: whether the text obeys the constraint; None without one.
      trace: with `Refinement.return_trace`, every step of every hypothesis, best first; otherwise None. Its fields are
        the numpy arrays of `Trace` without the axis of sources ([T, K, …]).
      origin: its source and how it was decoded, for whoever shows it; None if no translator made it.
    """

    text: str
    score: float
    steps_run: int
    predicted_length: int
    hypotheses: tuple[tuple[str, float], ...] = ()
    cut_off: bool = False
    hypotheses_cut_off: tuple[bool, ...] = ()
    rounds: int | None = None
    trace: Trace | None = None
    queries: Queries | None = None
    failed: bool = False
    constraint_met: bool | None = None
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str | None:
        """What Jupyter shows: the steps of a traced translation, in a frame of its own; None shows `repr`."""
        if self.trace is None or self.origin is None:
            return None
        return page.frame([document(self)])
