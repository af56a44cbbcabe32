"""Workers and machines of a real Ray cluster are lost: the outcomes are those of one process (docs/run_at_scale.md)."""

import time
from collections import Counter

import pytest
from stand_ins import tables

from robustbench_kpca import evaluate
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.shard_run import ShardRun
from robustbench_kpca.protocols.presets import find
from robustbench_kpca.records.unfinished import unfinished

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray leaves files open
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
ATTACK = {"protocol": "pgd20-linf-4_255", "steps": 5, "batch_size": 4, "audit": False}


@pytest.fixture(scope="module")
def cluster():
    """Several raylets on this machine; the first has no workers."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture
def made(monkeypatch):
    counted = {"finished": Counter(), "failed": Counter()}
    for name, counter in counted.items():
        plain = getattr(ShardRun, name)
        monkeypatch.setattr(
            ShardRun, name, lambda self, shard, *rest, plain=plain, counter=counter: (
                counter.update([shard.first]), plain(self, shard, *rest)
            ),
        )  # fmt: skip
    return counted


def run(toy, digits, out, **how):
    return evaluate(f"{toy}/toy.py:build", digits, out=out, **ATTACK | how)


def test_a_machine_that_is_lost_loses_no_more_than_one_shard_a_worker(cluster, toy, digits, tmp_path, made):
    one = run(toy, digits, tmp_path / "plain")
    nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    (toy / "slow").touch()
    (toy / "kill-9").touch()  # a worker, besides

    def lose(done, total, **news):
        if done and nodes:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            nodes.clear()

    other = run(toy, digits, tmp_path / "out", executor=f"ray:{cluster.address}", processes=3, progress=lose)
    assert not nodes
    assert not (toy / "kill-9").exists()
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")
    left = {"created", "seconds"}
    assert one.model_dump(exclude=left) == other.model_dump(exclude=left)
    assert made["finished"] == Counter(dict.fromkeys(range(0, 24, 4), 1)), "nothing was made twice"
    assert 1 <= made["failed"].total() <= 2, "one worker was killed, one lost its machine"
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_an_interrupted_run_keeps_what_is_finished_and_goes_on(cluster, toy, digits, tmp_path, made):
    run(toy, digits, tmp_path / "plain", steps=60)
    (toy / "slow").touch()  # a shard takes some seconds

    def interrupt(done, total, **news):
        finished, *_, busy, _ = news["stage"].split()
        if int(finished) >= 2 and int(busy):
            raise KeyboardInterrupt

    how = {"executor": f"ray:{cluster.address}", "steps": 60}
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(toy, digits, tmp_path / "out", progress=interrupt, **how)
    assert time.monotonic() - started < 60
    assert unfinished(tmp_path / "out")[0].done >= 2
    (toy / "slow").unlink()
    run(toy, digits, tmp_path / "out", **how)
    assert set(made["finished"].values()) == {1}, "finished shards were kept"
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")


def test_a_machine_finds_an_attack_by_its_address(cluster, tmp_path):
    text = (
        "from robustbench_kpca import one_gradient\n\n\n@one_gradient(steps=2)\ndef climb(x, gradient, state):\n"
        "    return x + state['eps'] * gradient.sign()\n"
    )
    (tmp_path / "mine.py").write_text(text)
    preset = find("attacks")["fgsm-linf-8_255"].read_text()
    protocol = tmp_path / "mine.toml"
    protocol.write_text(preset.replace('attack = "fgsm"', f'attack = "{tmp_path}/mine.py:climb"\nsteps = 2'))
    asked = ["eval", "-m", "vit_digits", "-p", str(protocol), "--limit", "24", "--batch-size", "4", "--audit", "none"]
    assert main([*asked, "-q", "-o", str(tmp_path / "one")]) == 0
    more = ["--executor", f"ray:{cluster.address}", "--processes", "1"]
    assert main([*asked, "-q", "-o", str(tmp_path / "two"), *more]) == 0
    assert tables(tmp_path / "one") == tables(tmp_path / "two")


def test_a_cluster_is_started_for_the_run_and_ended(toy, tmp_path):
    """It comes last: in a process that goes back to a cluster which it left, Ray loses actors (docs/limits.md)."""
    asked = ["-m", f"{toy}/toy.py:build", "--data", "digits", "--limit", "24", "--batch-size", "4", "--device", "cpu"]
    asked = ["eval", *asked, "-p", "noise-blur-contrast", "--set", 'corruptions=["contrast"]', "-q"]
    assert main([*asked, "-o", str(tmp_path / "plain")]) == 0
    assert main([*asked, "-o", str(tmp_path / "out"), "--executor", "ray", "--processes", "2"]) == 0
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")
    assert not ray.is_initialized()
