"""A second model that takes part in decoding."""

from __future__ import annotations

from typing import ClassVar, Self

from flax import struct

from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.types import PyTree, TokenIds


@struct.dataclass
class Helper:
    """An autoregressive model that works on another model's hypotheses; a pytree, so `jit` takes it as an argument.

    Attributes:
      model: of the same vocabulary; static.
      params: its parameters, or what `BaseModel.for_decoding` made of them.
    """

    # What `decode` calls it, the option that names it, and what it does.
    role: ClassVar[str]
    option: ClassVar[str]
    task: ClassVar[str]

    model: AutoregressiveModel = struct.field(pytree_node=False)
    params: PyTree

    def check(self, ids: TokenIds) -> None:
        """Raises PadirError if the model's vocabulary is not the one of `ids`."""
        if self.model.ids.num_pieces != ids.num_pieces:
            raise PadirError(
                f"{self.option}: its vocabulary has {self.model.ids.num_pieces} pieces, the hypotheses' "
                f"{ids.num_pieces}"
            )

    def for_decoding(self, compute_type: str | None) -> Self:
        """The helper with parameters as it reads them fastest; of `compute_type` if its products may be rounded."""
        del compute_type
        return self
