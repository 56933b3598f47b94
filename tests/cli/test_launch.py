from gcr.cli.launch import memory_line
from gcr.experiments.experiment import compose


def test_the_size_of_memory_is_said_where_all_runs_agree():
    gcr, er, finetune = (compose("seq-digits", method, seed=0) for method in ("gcr", "er", "finetune"))
    row = 64 + 8 + 40 + 4 + 8
    assert memory_line([gcr, finetune]) == f"memory: 100 examples + 100 candidates, {200 * row / 1e6:.2f} MB"
    assert memory_line([er]) == "memory: 100 examples, 0.01 MB"
    assert memory_line([gcr, er]) == memory_line([finetune]) == memory_line([]) == ""
