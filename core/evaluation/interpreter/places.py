"""Where a candidate's tensors would lie on a machine with a GPU: there, or on the host, where no kernel reaches them.

All are the same meta tensors here; which of them a device argument, or the lack of one, would have put on the host is
kept by storage, so that views have it too. What is not known to be on the host counts as on the GPU: a mistake that is
missed costs less than an honest kernel. A new tensor is on the host where that is asked for; where no device is named,
with the tensors that it comes from; and where it comes from none, outside of `ModelNew(...)`, which runs on the GPU.
"""

from typing import Any

import torch

from core.evaluation.remote import Remote, is_meta, plainly

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
_MOVES = ("to", "cuda", "cpu", "type", "type_as")


class Places:
    """One host process's book."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self.made_on = HOST
        """Where factories put what has no device: set_default_device."""
        self.constructing = False
        """Then it is the GPU."""

    def on_host(self, tensor: torch.Tensor) -> bool:
        return _number(tensor) in self._remote.on_host

    def reachable(self, tensor: torch.Tensor) -> bool:
        """Whether a kernel can use it."""
        return not self.on_host(tensor) or _number(tensor) in self._remote.pinned

    def device(self, tensor: torch.Tensor) -> torch.device:
        return HOST if self.on_host(tensor) else GPU

    def put(self, tensor: torch.Tensor, device: torch.device, pinned: bool = False) -> None:
        number = _number(tensor)
        if number is None:
            return
        (self._remote.on_host.add if device.type == "cpu" else self._remote.on_host.discard)(number)
        if pinned:
            self._remote.pinned.add(number)

    def put_module(self, module: torch.nn.Module, device: torch.device | None) -> None:
        """Parameters and buffers; nothing without a device."""
        if device is not None:
            for tensor in (*module.parameters(), *module.buffers()):
                self.put(tensor, device)

    def asked(self, name: str, args: Any, kwargs: Any) -> torch.device | None:
        """The device that a call of torch's function `name` asks for. Raises RuntimeError for a GPU there is not."""
        if name in ("cpu", "cuda"):
            index = args[1] if len(args) > 1 else kwargs.get("device")
            return HOST if name == "cpu" else _real(GPU if index is None else index)
        if kwargs.get("device") is not None:
            return _real(kwargs["device"])
        given = [*args[1:2], kwargs.get("other")] if name in ("to", "type_as") else []
        for value in given:
            if isinstance(value, torch.Tensor):
                return self.device(value)
            if isinstance(value, (str, torch.device)) or type(value) is int:
                return _real(value)
        if name == "type" and len(args) > 1 and not isinstance(args[1], torch.dtype):
            return GPU if "cuda" in str(args[1]) else HOST
        return None

    def place(self, name: str, asked: torch.device | None, args: Any, kwargs: Any, out: Any) -> Any:
        """What a call gave, which is another tensor than its first argument where it was moved."""
        made = _tensors(out)
        if not made:
            return out
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name in _MOVES and asked is not None and source is not None and self.device(source) != asked:
            moved = out if _number(out) != _number(source) else out.clone()
            self.put(moved, asked)
            return moved
        given = [tensor for value in (*args, *kwargs.values()) for tensor in _tensors(value)]
        known = {None, *map(_number, given)}
        for tensor in made:
            if _number(tensor) in known:
                continue  # a view, or written in place, or nothing that is kept here
            where = asked
            if where is None and given:
                where = HOST if all(not is_meta(value) or self.on_host(value) for value in given) else GPU
            self.put(tensor, where or (GPU if self.constructing else self.made_on), bool(kwargs.get("pin_memory")))
        return out


def _number(tensor: torch.Tensor) -> int | None:
    """Its storage; None of one that has none here: real numbers of Python's, sparse ones, those inside of a vmap."""
    with plainly():
        try:
            return int(tensor.untyped_storage()._cdata) if is_meta(tensor) else None
        except (NotImplementedError, RuntimeError):
            return None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [part for part in value if isinstance(part, torch.Tensor)]
    return []


def _real(device: Any) -> torch.device:
    """What a device argument names."""
    if isinstance(device, int):
        device = torch.device("cuda", device)
    found = torch.device(device) if isinstance(device, str) else device
    if found.type == "cuda" and found.index not in (None, 0):
        raise RuntimeError(f"CUDA error: invalid device ordinal: there is one GPU, cuda:0, and no {found}")
    return GPU if found.type != "cpu" else HOST
