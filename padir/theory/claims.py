"""A statement of the chapter, with the number that decides whether the run bears it out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Claim:
    """One line of a result.

    Attributes:
      text: what is claimed, and of what `measured` is.
      measured: computed from the result's data.
      relation: how it must stand to `limit`.
      limit: the number it is held against.
      reason: of a statement that is known not to hold as the chapter prints it: why.
    """

    text: str
    measured: float
    relation: Literal["<=", ">=", "<", ">"]
    limit: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether it holds; a nan passes nothing."""
        measured, limit = float(self.measured), float(self.limit)
        return {
            "<=": measured <= limit,
            ">=": measured >= limit,
            "<": measured < limit,
            ">": measured > limit,
        }[self.relation]

    def line(self) -> str:
        """'PASS  text: 0.5 <= 1'; what failed is followed by the reason, if one is known."""
        verdict = "PASS" if self.passed else "FAIL"
        because = f" ({self.reason})" if self.reason and not self.passed else ""
        return f"{verdict}  {self.text}: {self.measured:.6g} {self.relation} {self.limit:.6g}{because}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no nan and no infinity: they are None."""
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
