"""The usual way of evaluating one candidate, for comparison: a fresh Python, inputs on the CPU for every trial, the
reference run and timed each time. `python naive_gpu.py TASK CANDIDATE CORRECTNESS_TRIALS TIMING_TRIALS` prints seconds.

Written from the published descriptions of such evaluators: equal seeds for both models, inputs from get_inputs() on the
CPU and copied, allclose at 1e-4, then timing with events, a fresh buffer that flushes the L2 cache and a
synchronisation per trial, the first one left out. Candidate and reference are timed on inputs made anew for each. A
wrong candidate runs all correctness trials and is not timed. Left out in its favour: its own imports, some seconds.
"""

import importlib.util
import json
import sys
import time

started = time.monotonic()

import torch  # noqa: E402


def load(path: str, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(model, inputs, trials: int) -> float:
    for _ in range(3):
        model(*inputs)
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    times = []
    for _ in range(trials + 1):
        flush = torch.empty(32 * 2**20, dtype=torch.int64, device="cuda")
        flush.fill_(42)
        del flush
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        model(*inputs)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sum(times[1:]) / trials


def main() -> None:
    task, candidate = load(sys.argv[1], "task"), load(sys.argv[2], "candidate")
    correctness, timing, reuse = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:] == ["1"]
    torch.set_grad_enabled(False)
    torch.manual_seed(42)
    reference = task.Model(*task.get_init_inputs()).cuda()
    torch.manual_seed(42)
    own = candidate.ModelNew(*task.get_init_inputs()).cuda()
    setup_s = time.monotonic() - started
    right, trials_s = True, []
    for trial in range(correctness):
        begun = time.monotonic()
        torch.manual_seed(42 + trial)
        inputs = [part.cuda() for part in task.get_inputs()]
        wanted = reference(*inputs)
        got = own(*inputs)
        torch.cuda.synchronize()
        right &= torch.allclose(wanted, got, atol=1e-4, rtol=1e-4)
        del wanted, got
        trials_s.append(time.monotonic() - begun)
    timing_s, inputs_s, saved_s, inputs = [], 0.0, 0.0, None
    if right:
        for model in (own, reference):
            begun = time.monotonic()
            if inputs is not None and reuse:
                saved_s = inputs_s
            else:
                torch.manual_seed(42)
                inputs = [part.cuda() for part in task.get_inputs()]
                torch.cuda.synchronize()
                inputs_s += time.monotonic() - begun
            begun = time.monotonic()
            timed(model, inputs, timing)
            timing_s.append(time.monotonic() - begun)
    answer = {"right": bool(right), "setup_s": setup_s, "trials_s": trials_s, "inputs_s": inputs_s}
    print(json.dumps({**answer, "inputs_saved_s": saved_s, "timing_s": timing_s}))


if __name__ == "__main__":
    main()
