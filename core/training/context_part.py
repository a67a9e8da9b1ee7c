"""The part of a packed row that a rank trains when all ranks share its sequence (`core.training.context`)."""

import torch

from core.training.context import Split
from core.training.packing import Packed


def part(packed: Packed, rank: int, world: int, *, multiple: int = 1) -> Packed:
    """This rank's part of a row that holds one sequence. multiple: of tokens on each rank.

    A rank without a trained position has one of weight 0, as a row without samples has.
    """
    if len(packed.lengths) != 1:
        raise ValueError(f"a row of {len(packed.lengths)} sequences can't be split: one at a time")
    step = multiple if multiple % 2 == 0 else 2 * multiple
    mine_tokens = -(-packed.tokens // (world * step)) * step
    split = Split(rank, world, mine_tokens // 2)
    positions = split.positions()
    ids = torch.zeros(split.tokens, dtype=torch.int64)
    ids[: packed.tokens] = packed.ids
    place = torch.full((split.tokens,), -1, dtype=torch.int64)
    place[positions] = torch.arange(len(positions))
    columns = {
        name: getattr(packed, name)
        for name in ("targets", "weights", "advantages", "behaviour", "versions", "sequence")
    }
    at = place[packed.picked]
    mine = (at >= 0).nonzero()[:, 0]
    picked = at[mine]
    columns = {name: column[mine] for name, column in columns.items()}
    if not len(picked):
        picked = torch.zeros(1, dtype=torch.int64)
        columns = {name: torch.zeros(1, dtype=column.dtype) for name, column in columns.items()}
        columns["versions"] -= 1
    return Packed(
        ids=ids[positions], position_ids=positions, cu_seqlens=torch.tensor([0, split.chunk], dtype=torch.int32),
        lengths=(split.tokens,), picked=picked, split=split, **columns,
    )  # fmt: skip
