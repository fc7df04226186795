"""A statement of the chapter, with the number that decides whether the run bears it out (layer 8)."""

from __future__ import annotations

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
    """

    text: str
    measured: float
    relation: Literal["<=", ">=", "<", ">"]
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it holds; a nan passes nothing."""
        return {
            "<=": self.measured <= self.limit,
            ">=": self.measured >= self.limit,
            "<": self.measured < self.limit,
            ">": self.measured > self.limit,
        }[self.relation]

    def line(self) -> str:
        """'PASS  text: 0.5 <= 1'."""
        verdict = "PASS" if self.passed else "FAIL"
        return f"{verdict}  {self.text}: {self.measured:.6g} {self.relation} {self.limit:.6g}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "claim": self.text,
            "measured": self.measured,
            "relation": self.relation,
            "limit": self.limit,
            "passed": self.passed,
            "line": self.line(),
        }
