import numpy as np

from robustbench_kpca._core.randomness import generator, sample_key


def test_streams_are_functions_of_their_names():
    key = sample_key(0, "0/pgd/0", "digits/0001")
    assert 0 <= key < 2**63
    assert key == sample_key(0, "0/pgd/0", "digits/0001")
    others = [
        sample_key(1, "0/pgd/0", "digits/0001"),
        sample_key(0, "0/pgd/1", "digits/0001"),
        sample_key(0, "0/pgd/0", "2"),
    ]
    assert len({key, *others}) == 4
    assert sample_key(1, "1", "x") != sample_key(11, "", "x")
    assert sample_key(0, "a", "b") != sample_key(0, "ab", "")
    first, second = (generator(sample_key(0, "s", name)).uniform(size=4000) for name in "ij")
    assert np.array_equal(first, generator(sample_key(0, "s", "i")).uniform(size=4000))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
