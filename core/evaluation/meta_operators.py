"""Operators on the meta device without the whole of torch._dynamo.

Many of them are Python functions in torch that switch its compiler off around themselves, and the first one that is
called imports all of it for that: a second of each start of a judge's worker, and memory, for a compiler that does not
run there. Where torch keeps this differently, nothing is found and the import stays.
"""

import gc
from types import FunctionType


def need_no_compiler() -> None:
    """From now on in this process. Code that is compiled all the same gives what it always gives."""
    import torch._compile
    import torch._refs  # where most of them are; torch would import it at the first one

    switched_off = torch._compile._disable_dynamo(lambda: None)
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__ is switched_off.__code__ and one.__closure__:
            names = one.__code__.co_freevars
            if "fn" in names:
                plain = one.__closure__[names.index("fn")].cell_contents
                plain.__dict__.setdefault("__dynamo_disable", plain)
