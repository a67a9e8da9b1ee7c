"""The same language objects for less: shapes and block types that the stock interpreter makes anew for every value.

A value of a kernel is a `tl.tensor` with a type, a shape of constexprs and a size; making these took half of the time
of a small kernel. They depend on the sizes alone, so they are made once and shared: nothing in the language changes
them.
Where Triton's own constructors set other attributes than those known here, nothing is replaced.
"""

import math
from typing import Any

import triton.language as tl
from triton.language import core

_shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
"""sizes -> (shape as a tensor has it, number of elements)"""
_blocks: dict[tuple[int, ...], tuple[Any, int, str]] = {}
"""sizes -> (shape as a block type has it, number of elements, its text)"""
_TENSOR = {"handle", "shape", "numel", "type", "dtype"}
_BLOCK = {"element_ty", "shape", "numel", "name"}


def _plain(sizes: Any) -> tuple[int, ...]:
    return tuple([size.value if isinstance(size, core.constexpr) else size for size in sizes])


def _tensor_init(self: Any, handle: Any, type: Any) -> None:
    """Stands for tl.tensor.__init__."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    sizes = _plain(type.shape) if type.is_block() else ()
    known = _shapes.get(sizes)
    if known is None:
        known = core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))
        _shapes[sizes] = known
    self.shape, self.numel = known


def install() -> bool:
    """Replace the constructors; False where they are not what this file knows."""
    stock_block = core.block_type.__init__

    def _block_init(self: Any, element_ty: Any, shape: Any) -> None:
        """Stands for tl.block_type.__init__: the first of its sizes is made, and checked, by Triton itself."""
        sizes = _plain(shape)
        known = _blocks.get(sizes)
        if known is None:
            stock_block(self, element_ty, shape)
            _blocks[sizes] = self.shape, self.numel, str(self.shape)
            return
        self.element_ty, (self.shape, self.numel, text) = element_ty, known
        self.name = f"<{text}, {element_ty}>"

    block = core.block_type(tl.float32, [4, 2])
    value = tl.tensor(None, block)
    known = set(vars(block)) == _BLOCK and set(vars(value)) == _TENSOR
    known = known and block.name == f"<{block.shape}, {tl.float32}>" and isinstance(value.shape, core.tuple)
    if known:
        core.block_type.__init__ = _block_init
        core.tensor.__init__ = _tensor_init
    return known
