from core.tasks.sources import load_source
from core.tasks.starter import starter_kernel


def test_every_kernel_agrees_with_its_model_in_the_interpreter(tmp_path, run_kernels):
    tasks = load_source(kind="starter", levels=(3,))
    cases = [
        {"source": task.source, "kernel": starter_kernel(task.name), "seed": seed} for task in tasks for seed in (0, 100)
    ]
    found = run_kernels(cases, tmp_path)
    answers = dict(zip([f"{task.name} {seed}" for task in tasks for seed in (0, 100)], found, strict=True))
    print(sorted(((seconds, name) for name, (_, seconds) in answers.items()), reverse=True)[:20])
    assert {name: answer for name, (answer, _) in answers.items() if answer != "right"} == {}
