"""New weights for a model that is running: read and checked beside it, then put in place in one go.

The source is one of `core.weights.incoming`, `base` the model's folder. Receiving is the slow part and happens while
the engine decodes; the swap is a copy in memory between two steps. A tensor that is tied to another may be in the
source or not.
"""

import torch
from torch import nn

from core.weights.fingerprint import Fingerprint
from core.weights.incoming import receive

RECEIVE_TIMEOUT_S = 120.0


def read_weights(
    source: str, model: nn.Module, *, base: str = "", timeout_s: float = RECEIVE_TIMEOUT_S
) -> dict[str, torch.Tensor]:
    """Tensors of `source` by parameter name, on the CPU, in the published dtype. Raises ValueError when names or shapes
    are not the model's, FileNotFoundError when the source holds no weights, TimeoutError."""
    wanted = dict(model.named_parameters())
    tied = set(dict(model.named_parameters(remove_duplicate=False))) - set(wanted)
    received = receive(source, device=torch.device("cpu"), timeout_s=timeout_s, base=base)
    weights = {name: tensor for name, tensor in received.tensors if name not in tied}
    missing, unknown = sorted(set(wanted) - set(weights)), sorted(set(weights) - set(wanted))
    if missing or unknown:
        raise ValueError(
            f"the weights in {source} are not for this model: {len(missing)} tensors missing {missing[:3]}, "
            f"{len(unknown)} unknown {unknown[:3]}"
        )
    for name, tensor in weights.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(f"{source}: {name} has shape {list(tensor.shape)}, wanted {list(wanted[name].shape)}")
    return weights


@torch.no_grad()
def replace_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> str:
    """Copy `weights` into the model's parameters, in place; answers with the fingerprint of what then stands there, in
    the published dtype."""
    seal = Fingerprint()
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
        seal.add(name, parameter.detach().to(weights[name].dtype))
    return seal.hexdigest()
