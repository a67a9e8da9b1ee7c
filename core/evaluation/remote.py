"""The host's tensors: shapes without data. Every operator on them is a message to the executor.

A candidate sees ordinary `torch.Tensor`s that say they are on a GPU. They are meta tensors: sizes and strides are kept
here, by torch itself, so that views cost nothing; values exist only in the executor. There is nothing to search, to
read through NumPy or ctypes, or to overwrite.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from core.evaluation import link, values
from core.evaluation.link import Link

META = torch.device("meta")
_LOCAL = frozenset(("empty", "empty_strided", "new_empty", "new_empty_strided", "zeros", "new_zeros", "ones",
                    "new_ones", "full", "new_full"))  # fmt: skip
"""New tensors whose shape torch knows without the executor; they are not waited for."""
_LIKE = frozenset(("empty_like", "zeros_like", "ones_like", "full_like"))
"""The same of contiguous tensors. Torch's own rule for the others is Python that imports half of torch."""
_UNWAITED = frozenset(("fill_", "zero_", "uniform_", "normal_"))
"""In place, and can't fail: not waited for either."""
_MAX_TOLIST = 64
_KEYS = ("CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
"""Where an operator of the candidate's own may have its implementation."""


class DataEscapeError(RuntimeError):
    """The candidate wants a tensor's values in Python."""


class Remote:
    """The host's book of storages: meta storages by number, and the link."""

    def __init__(self, link_: Link) -> None:
        self.link = link_
        self._held: dict[int, tuple[int, torch.UntypedStorage]] = {}
        self._meta: dict[int, torch.UntypedStorage] = {}
        self.on_host: set[int] = set()
        self.pinned: set[int] = set()
        """Storages that would not lie on a GPU, and those of them that kernels reach (interpreter.places)."""
        self._next = 2

    # --- names for tensors ---

    def ref(self, tensor: torch.Tensor) -> list[Any]:
        """A tensor for the executor: a reference, or bytes when the candidate made it from Python numbers."""
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided or name not in values.DTYPES:
            raise TypeError(f"a {tensor.layout} tensor of {tensor.dtype} can't be used here")
        if is_meta(tensor):
            tensor = tensor.detach() if tensor.requires_grad else tensor
            tensor = tensor.resolve_conj().resolve_neg()
            storage = tensor.untyped_storage()
            known = self._held.get(storage._cdata)
            if known is None:
                raise TypeError("a tensor without data: it was made outside of forward's thread or on device 'meta'")
            return ["t", known[0], name, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]
        tensor = tensor.detach().resolve_conj().resolve_neg()
        return ["h", name, list(tensor.shape), list(tensor.stride()), values.raw_bytes(tensor)]

    def tensor(self, ref: list[Any]) -> torch.Tensor:
        """A meta tensor for a reference of the executor's."""
        _, number, name, sizes, strides, offset = ref
        dtype = values.DTYPES[name]
        storage = self._meta.get(number)
        if storage is None:
            out = torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device=META)
            if offset == 0:
                self._adopt(out, number)
                return out
            nbytes = (offset + values.extent(sizes, strides)) * dtype.itemsize
            storage = torch.empty(nbytes, dtype=torch.uint8, device=META).untyped_storage()
            self._meta[number] = storage
            self._held[storage._cdata] = (number, storage)
        return torch.empty(0, dtype=dtype, device=META).set_(storage, offset, tuple(sizes), tuple(strides))

    def _adopt(self, tensor: torch.Tensor, number: int) -> None:
        storage = tensor.untyped_storage()
        self._held[storage._cdata] = (number, storage)
        self._meta[number] = storage

    def adopt_new(self, tensors: list[torch.Tensor]) -> list[int]:
        """Numbers for tensors that were just made here."""
        numbers = list(range(self._next, self._next + 2 * len(tensors), 2))
        self._next += 2 * len(tensors)
        for tensor, number in zip(tensors, numbers, strict=True):
            self._adopt(tensor, number)
        return numbers

    def address(self, tensor: torch.Tensor) -> int:
        """What data_ptr() answers: another number for every place, and no address."""
        known = self._held.get(tensor.untyped_storage()._cdata)
        return 0 if known is None else (known[0] + 1 << 36) + int(tensor.storage_offset()) * tensor.element_size()

    def release(self) -> None:
        """Tell the executor which storages no tensor refers to any more."""
        gone = [cdata for cdata in self._held if torch._C._storage_Use_Count(cdata) <= 1]
        numbers = [self._held.pop(cdata)[0] for cdata in gone]
        self.on_host.difference_update(gone)
        self.pinned.difference_update(gone)
        for number in numbers:
            self._meta.pop(number, None)
        if numbers:
            self.link.post("free", numbers)

    # --- values ---

    def encode(self, value: Any) -> Any:
        return link.encode(value, self._special)

    def _special(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.ref(value)
        if isinstance(value, torch.dtype):
            return ["y", str(value).removeprefix("torch.")]
        if isinstance(value, torch.memory_format):
            return ["m", str(value).removeprefix("torch.")]
        if isinstance(value, torch.layout):
            return ["o", str(value)]
        if isinstance(value, torch.device):
            return ["e"]
        return None

    def decode(self, value: Any) -> Any:
        return link.decode(value, self._answer)

    def _answer(self, value: list[Any]) -> Any:
        if value[0] == "t":
            return self.tensor(value)
        if value[0] == "y":
            return values.DTYPES[value[1]]
        if value[0] == "e":
            return torch.device("cuda", 0)
        raise TypeError(f"a value of kind {value[0]!r}")

    def ask(self, name: str, args: Any, kwargs: Any) -> Any:
        """Run an operator over there and wait for its result; raises what it raised."""
        reply = self.link.ask("op", name, self.encode(args), self.encode(kwargs), True, [])
        if reply[0] == "error":
            raise _ERRORS.get(reply[1], RuntimeError)(reply[2])
        return self.decode(reply[1])

    def post(self, name: str, args: Any, kwargs: Any, numbers: list[int]) -> None:
        self.link.post("op", name, self.encode(args), self.encode(kwargs), False, numbers)


_ERRORS = {
    kind.__name__: kind for kind in (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, MemoryError)
}
_is_meta = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]
plainly = torch._C.DisableTorchFunction
"""Inside, torch's Python functions and attributes are its own, not the pretended ones."""


def is_meta(tensor: torch.Tensor) -> bool:
    """The truth, `plainly`; `tensor.is_meta` is pretended."""
    return bool(_is_meta(tensor))


class _Plan:
    """How one operator is treated, from its schema."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.packet = schema.name.partition("::")[2]
        self.takes_device = any(argument.name == "device" for argument in schema.arguments)
        written = {}
        for index, argument in enumerate(schema.arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                key = argument.name if argument.kwarg_only else index
                written.update(dict.fromkeys(alias.before_set, key))
        self.writes = bool(written)
        self.returns: list[Any] = []
        views = False
        for result in schema.returns:
            alias = result.alias_info
            key = next((written[name] for name in alias.before_set if name in written), None) if alias else None
            self.returns.append(key)
            views = views or (alias is not None and not alias.is_write)
        in_place_view = any(str(tag).endswith("inplace_view") for tag in func.tags)
        # A bit of the tensor says "conjugated": only real data can be made so, over there.
        self.local_view = (views and not self.writes and self.packet not in ("_conj", "_neg_view")) or in_place_view
        self.local_new = self.packet in _LOCAL and not self.writes
        self.unwaited = self.packet in _UNWAITED


class RemoteTensors(TorchDispatchMode):
    """Active while a candidate's code runs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports the whole of torch._dynamo, which takes seconds

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self.remote = remote
        self._plans: dict[Any, _Plan] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with plainly():
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        kwargs = dict(kwargs or {})
        plan = self._plans.get(func)
        if plan is None:
            if func.namespace not in ("aten", "prims"):
                return self._custom(func, args, kwargs)
            plan = self._plans[func] = _Plan(func)
        remote = self.remote
        if plan.packet in ("lift_fresh", "lift", "lift_fresh_copy"):
            return args[0] if is_meta(args[0]) else remote.ask("aten::clone", [args[0]], {})
        if plan.packet == "is_pinned":
            return False
        if plan.packet in ("_pin_memory", "record_stream"):
            return args[0]
        if plan.local_view:
            out = func(*args, **kwargs)
            if plan.packet == "resize_" and is_meta(args[0]):
                remote.link.post("grow", remote.ref(args[0])[1], args[0].untyped_storage().nbytes())
            return out
        kwargs.pop("generator", None)
        kwargs.pop("pin_memory", None)
        if plan.local_new:
            if plan.takes_device:
                kwargs["device"] = META
            like = [part for part in args if isinstance(part, torch.Tensor)]
            if not like or is_meta(like[0]):
                out = func(*args, **kwargs)
                remote.post(plan.name, args, kwargs, remote.adopt_new([out]))
                return out
        if plan.packet in _LIKE and _alike(args[0], kwargs.get("memory_format")):
            out = torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=META)
            remote.post(plan.name, args, kwargs, remote.adopt_new([out]))
            return out
        if plan.unwaited and is_meta(args[0]):
            remote.post(plan.name, args, kwargs, [])
            return args[0]
        out = remote.ask(plan.name, args, kwargs)
        if not plan.writes:
            return out
        mutated = [kwargs[key] if isinstance(key, str) else args[key] if key is not None else None
                   for key in plan.returns]  # fmt: skip
        for new, old in zip(out if len(plan.returns) > 1 else [out], mutated, strict=False):
            if isinstance(old, torch.Tensor) and is_meta(old) and old.shape != new.shape:  # out= was resized
                old.set_(new.untyped_storage(), new.storage_offset(), new.shape, new.stride())
        if len(plan.returns) == 1:
            return out if mutated[0] is None else mutated[0]
        if not plan.returns:
            return None
        return tuple(new if old is None else old for new, old in zip(out, mutated, strict=True))

    def _custom(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator of the candidate's own: its Python implementation runs here, with everything in it watched."""
        from torch._library.custom_ops import OPDEFS

        schema = func._schema
        known = OPDEFS.get(schema.name)
        with torch._C._EnableTorchFunction(), self:
            if known is not None:
                return (known._backend_fns.get("cuda") or known._init_fn)(*args, **kwargs)
            for name in _KEYS:
                key = getattr(torch._C.DispatchKey, name)
                if torch._C._dispatch_has_kernel_for_dispatch_key(schema.name, key):
                    return func._op_dk(key, *args, **kwargs)
        raise RuntimeError(f"operator {schema.name} has no implementation for CUDA")


def _alike(tensor: torch.Tensor, memory_format: Any) -> bool:
    """Whether a new tensor like this one is simply contiguous."""
    plain = memory_format in (None, torch.preserve_format, torch.contiguous_format)
    return plain and is_meta(tensor) and tensor.is_contiguous()


def tolist(remote: Remote, tensor: torch.Tensor) -> Any:
    """Tensor.tolist for a few values."""
    if tensor.numel() > _MAX_TOLIST:
        raise DataEscapeError(f"tolist() of {tensor.numel():,} elements takes the data out of torch")
    flat: list[Any] = [tensor.reshape(-1)[index].item() for index in range(tensor.numel())]
    for size in reversed(tensor.shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)]
    return flat if tensor.dim() else flat[0]


def without_modes() -> Any:
    """Inside, tensors are meta tensors and nothing is passed on."""
    return _disable_current_modes()


def warm() -> None:
    """Use the meta device once, so that no child has to be the first. Meta operators start no threads, so this is safe
    before a fork."""
    x = torch.empty(4, 4, device=META)
    storage = x.new_empty(2).untyped_storage()
    torch.zeros(2, device=META)
    x.new_zeros(2)
    torch.full((2,), 1.0, device=META)
    torch.empty_strided((2, 2), (2, 1), device=META)
    torch.empty(0, device=META).set_(storage, 0, (2,), (1,))
    for view in (x.view(16), x.t(), x.permute(1, 0), x[1:], x[0], x.unsqueeze(0), x.expand(2, 4, 4), x.reshape(2, 8)):
        view.detach()
    x.split(2), x.unbind(0), torch.ones(2, device=META), torch.empty(2, dtype=torch.bool, device=META)
    x.as_strided((2,), (1,))
    torch.nn.Linear(2, 2, device=META)
