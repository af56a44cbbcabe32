"""Where memory runs out in a worker, the batch is halved and the record says so, as in one process."""

from robustbench_kpca import evaluate


def test_a_worker_without_memory_halves_its_batch_and_the_record_says_so(toy, digits, tmp_path):
    how = {"protocol": "pgd20-linf-4_255", "steps": 5, "batch_size": 4, "audit": False}
    plain = evaluate(f"{toy}/toy.py:build", digits, **how)
    (toy / "full-12").touch()  # in the middle of a shard, since the process that plans shows fewer batches
    record = evaluate(f"{toy}/toy.py:build", digits, out=tmp_path, processes=2, **how)
    assert not (toy / "full-12").exists()
    assert [flag for flag in record.flags if "batch size" in flag], record.flags
    assert not [flag for flag in plain.flags if "batch size" in flag]
    assert record.outcomes["broken_by"].tolist() == plain.outcomes["broken_by"].tolist()
