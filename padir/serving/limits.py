"""What the server accepts, and what it says to a request that it refuses."""

from __future__ import annotations

from dataclasses import dataclass, fields

from padir.errors import PadirError


class RequestRefused(Exception):
    """A request that is refused.

    Attributes:
      status: the HTTP status.
      message: what the client is told, in one line.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Limits:
    """The most that the server accepts.

    Attributes:
      max_body_bytes: bytes of a request's body.
      max_text_chars: characters of one text.
      max_items: texts of one request, after texts were split.
      max_queue: texts that wait to be decoded. A request that does not fit is answered 429 at once.
      max_alternatives: further hypotheses of a text, and hypotheses of a decode. Each number of hypotheses is a program
        of its own, so this bounds how many a client can have compiled.
      max_steps: decoder passes of a refinement.
      max_connections: open connections; a further one is answered 503.
      max_seconds: seconds from the head of a request to its answer. The deadline also drops texts that wait.
        Requests that come before all programs are compiled may take five minutes.
    """

    max_body_bytes: int = 1_000_000
    max_text_chars: int = 10_000
    max_items: int = 128
    max_queue: int = 1024
    max_alternatives: int = 4
    max_steps: int = 32
    max_connections: int = 1000
    max_seconds: float = 30.0

    def __post_init__(self):
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise PadirError(f"serve.{field.name}: {getattr(self, field.name)!r} must be above 0")
        if self.max_items > self.max_queue:
            raise PadirError(
                f"serve.max_items: a request of {self.max_items} texts can never enter a queue of {self.max_queue}; "
                "raise max_queue"
            )
