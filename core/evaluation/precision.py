"""Which shortcuts torch's own float32 and half products may take: one choice for reference, baseline and candidate.

A baseline that may use TF32 beside a candidate that must not (or the other way round) is no comparison. So the trusted
side sets these flags in its own process, gives them to every child before any other code runs there, and writes them
down with every baseline. A candidate can set them in its own process: what it then returns is compared all the same.
"""

import msgspec
import torch


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """Strict unless said otherwise: torch itself lets cuDNN use TF32."""

    tf32: bool = False
    """TF32 in matrix products and convolutions of float32."""
    reduced_sums: bool = True
    """float16 and bfloat16 products may add up in their own type between tiles (torch's default)."""

    def apply(self) -> None:
        """Set the flags in this process."""
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = self.reduced_sums
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = self.reduced_sums

    def recorded(self) -> dict[str, bool]:
        """For the wire and for what is written down."""
        return {"tf32": self.tf32, "reduced_sums": self.reduced_sums}
