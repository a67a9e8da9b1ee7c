from core.generation.prefixes import Prefix, Prefixes


def test_the_longest_beginning_is_found():
    kept = Prefixes(100)
    kept.put([1, 2], "short")
    kept.put([1, 2, 3, 4], "long")
    kept.put([9], "other")
    assert kept.find([1, 2, 3, 4, 5]) == Prefix(4, "long")
    assert kept.find([1, 2, 3]) == Prefix(2, "short")
    assert kept.find([1, 3]) is None


def test_a_prompt_needs_at_least_one_token_of_its_own():
    kept = Prefixes(100)
    kept.put([1, 2], "all")
    assert kept.find([1, 2]) is None


def test_tokens_are_bounded_and_the_least_used_goes_first():
    kept = Prefixes(6)
    kept.put([1, 1], "a")
    kept.put([2, 2], "b")
    assert kept.find([1, 1, 5]) is not None
    kept.put([3, 3, 3], "c")
    assert kept.find([2, 2, 5]) is None and kept.find([1, 1, 5]) is not None and kept.find([3, 3, 3, 5]) is not None
    kept.put([4] * 7, "too long")
    assert len(kept) == 2


def test_putting_again_replaces():
    kept = Prefixes(4)
    kept.put([1, 1], "old")
    kept.put([2, 2], "b")
    kept.put([1, 1], "new")
    assert kept.find([1, 1, 0]) == Prefix(2, "new") and kept.find([2, 2, 0]) == Prefix(2, "b")
    kept.clear()
    assert len(kept) == 0 and kept.find([1, 1, 0]) is None
    kept.put([1, 1, 1, 1], "fits again")
    assert len(kept) == 1
