"""What spans are multiplied by, for each list of labels that was used last: requests have the same lists again and again.

The vectors of labels have a cache of their own, by label; a list of 100 000 labels is found here by one look, without one for each label.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor

# bytes of the matrices that are kept: two lists of 100 000 labels of width 512 in 16 bits
MATRIX_BYTES = 256 << 20

Runs = tuple[bytes, ...]


class LabelMatrices:
    """The matrices of the lists of labels that were used last.

    Args:
        make: Returns the matrix `[labels, size]` of a list.
        capacity: Bytes of the matrices that are kept, on the device of the encoder.
    """

    def __init__(self, make: Callable[[Runs, Tensor], Tensor], capacity: int = MATRIX_BYTES) -> None:
        self._make = make
        self.capacity = capacity
        self._used = 0
        # by last use, the oldest first
        self._matrices: OrderedDict[Runs, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._matrices)

    def __contains__(self, runs: Runs) -> bool:
        return runs in self._matrices

    def clear(self) -> None:
        """Forget all of them."""
        self._matrices.clear()
        self._used = 0

    def get(self, runs: Runs, like: Tensor) -> Tensor:
        """Return the matrix of a list, `[labels, size]`, with the dtype and on the device of ``like``; nobody may change it."""
        if (known := self._matrices.get(runs)) is not None:
            self._matrices.move_to_end(runs)
            return known
        matrix = self._make(runs, like)
        size = matrix.numel() * matrix.element_size()
        if size <= self.capacity:
            while self._used + size > self.capacity:
                _, oldest = self._matrices.popitem(last=False)
                self._used -= oldest.numel() * oldest.element_size()
            self._matrices[runs] = matrix
            self._used += size
        return matrix
