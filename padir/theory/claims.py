"""A claim of the chapter, with the measured number that decides whether it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Claim:
    """A claim and its check.

    Attributes:
      text: what is claimed, and what `measured` is.
      measured: a number computed from the result's data.
      relation: the relation of `measured` to `limit` if the claim holds.
      limit: the number that `measured` is compared with.
      reason: why the claim fails, if it is known not to hold as the chapter prints it.
    """

    text: str
    measured: float
    relation: Literal["<=", ">=", "<", ">"]
    limit: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether the claim holds; False if `measured` is NaN."""
        measured, limit = float(self.measured), float(self.limit)
        return {
            "<=": measured <= limit,
            ">=": measured >= limit,
            "<": measured < limit,
            ">": measured > limit,
        }[self.relation]

    def line(self) -> str:
        """The claim in one line, e.g. 'PASS  text: 0.5 <= 1'. After a failure comes the reason, if it is known."""
        verdict = "PASS" if self.passed else "FAIL"
        because = f" ({self.reason})" if self.reason and not self.passed else ""
        return f"{verdict}  {self.text}: {self.measured:.6g} {self.relation} {self.limit:.6g}{because}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the claim as JSON values; a NaN or infinite `measured` becomes None."""
        measured = float(self.measured)
        return {
            "claim": self.text,
            "measured": measured if math.isfinite(measured) else None,
            "relation": self.relation,
            "limit": float(self.limit),
            "passed": self.passed,
            "reason": self.reason,
            "line": self.line(),
        }
