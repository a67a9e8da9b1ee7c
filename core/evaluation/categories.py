"""The one word that says why a candidate did not pass, and the stage at which that is decided.

Categories are what rewards, curricula and reports count, so they are few, stable and about one cause each.
"""

CATEGORIES: dict[str, tuple[str, str]] = {
    # static
    "syntax_error": ("static", "the source does not parse"),
    "too_large": ("static", "the source is larger than any kernel needs"),
    "no_model_new": ("static", "there is no class ModelNew"),
    "no_kernel": ("launch", "no kernel of the task's backend in the source, or forward launched none"),
    # load
    "import_error": ("load", "executing the source failed"),
    "construct_error": ("load", "ModelNew(*init_inputs) failed"),
    "weights_mismatch": ("load", "parameters or buffers of Model are absent in ModelNew or have another shape"),
    # compile
    "compile_error": ("compile", "the Triton compiler refuses a kernel for the target"),
    "compile_timeout": ("compile", "compiling for the target took too long"),
    "shared_memory": ("compile", "a kernel needs more shared memory than the target has"),
    "registers": ("compile", "a kernel needs more registers than a block may have"),
    # launch
    "runtime_error": ("launch", "forward raised outside a kernel"),
    "kernel_error": ("launch", "a kernel raised while it was interpreted"),
    "launch_error": ("launch", "a kernel was called with wrong arguments or an impossible grid"),
    "out_of_bounds": ("launch", "a kernel touched memory outside its tensors"),
    "race_condition": ("launch", "programs of one launch depend on an order that a GPU does not keep"),
    "illegal_kernel": ("launch", "a kernel's body uses what Triton's language does not have"),
    "timeout": ("launch", "the candidate used up its time"),
    "memory": ("launch", "the candidate used up its memory"),
    "crash": ("launch", "the candidate's process ended by itself or by a signal"),
    "output_limit": ("launch", "the candidate printed far more than is kept"),
    # correctness
    "wrong_structure": ("correctness", "the output is not the tensor or tuple that Model returns"),
    "wrong_type": ("correctness", "an output is not a plain torch.Tensor"),
    "wrong_dtype": ("correctness", "an output has another dtype"),
    "wrong_shape": ("correctness", "an output has another shape"),
    "wrong_value": ("correctness", "an output value is outside the tolerance"),
    "non_finite": ("correctness", "NaN or infinity where the reference has none, or the other way round"),
    "input_mutated": ("correctness", "forward changed its inputs"),
    "state_mutated": ("correctness", "forward changed parameters that Model leaves alone"),
    "output_reused": ("correctness", "a later call overwrote an earlier call's output"),
    "torch_fallback": ("correctness", "torch operators do the work that the kernel should do"),
    "data_escape": ("correctness", "forward takes tensors' values into Python or NumPy"),
    "nondeterministic": ("correctness", "the same inputs gave another output"),
    "decoy_kernel": ("correctness", "the output stays right when what the kernels stored is garbage"),
    "tampering": ("correctness", "the candidate interfered with the judge's side of its process"),
    # no score
    "task_error": ("load", "the task's reference does not run"),
    "unsupported": ("launch", "this tier can't tell"),
    "infra": ("launch", "our side is at fault"),
}
"""category -> (stage where it is usually decided, one line)."""
