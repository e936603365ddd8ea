"""Windows: every token is read, each is scored once, and cutting the document changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.ops.windows import IDLE, Window, check, plan, segment_length, windows

LENGTHS = st.integers(0, 120)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """A window and an overlap that fits it."""
    window = draw(st.integers(1, 20))
    return window, draw(st.integers(0, window - 1))


@given(LENGTHS, sizes())
def test_every_token_is_scored_exactly_once_and_in_order(length: int, size: tuple[int, int]) -> None:
    scored = [token for w in windows(length, *size) for token in range(w.scored, w.stop)]
    assert scored == list(range(length))


@given(LENGTHS, sizes())
def test_windows_start_every_stride_and_only_the_last_is_shorter(length: int, size: tuple[int, int]) -> None:
    window, overlap = size
    spans = list(windows(length, window, overlap))
    assert [w.start for w in spans] == [n * (window - overlap) for n in range(len(spans))]
    assert all(w.stop - w.start == window for w in spans[:-1])
    assert all(0 < w.stop - w.start <= window and w.start <= w.scored < w.stop <= length for w in spans)


@given(LENGTHS, sizes())
def test_a_window_reads_again_what_it_shares_with_the_one_before(length: int, size: tuple[int, int]) -> None:
    spans = list(windows(length, *size))
    for before, after in zip(spans, spans[1:], strict=False):
        assert before.stop == after.scored and before.stop - after.start == size[1]


def test_the_example_of_the_paper() -> None:
    # Inputs t1-10, t8-17, t15-24 predict t2-11, t12-18, t19-25; here tokens are counted from 0.
    assert list(windows(24, window=10, overlap=3)) == [
        Window(0, 0, 10),
        Window(7, 10, 17),
        Window(14, 17, 24),
    ]
    predicted = [[token + 2 for token in range(w.scored, w.stop)] for w in windows(24, 10, 3)]
    assert predicted == [list(range(2, 12)), list(range(12, 19)), list(range(19, 26))]


def test_no_tokens_no_windows() -> None:
    assert list(windows(0, 5)) == [] and plan(0, 5, 2, opened=3) == []


@given(sizes(), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 5))
def test_a_plan_in_pieces_is_the_plan_of_the_whole(size: tuple[int, int], pieces: list[int], prefix: int) -> None:
    window, overlap = size
    if prefix + overlap >= window:
        prefix = 0
    ends, opened, position = [], 0, 0
    for piece in pieces:
        reads = plan(piece, window, overlap, opened=opened, prefix=prefix)
        assert sum(read.new for read in reads) == piece
        for read in reads:
            assert read.cached == 0 and read.again + read.new <= window
            assert read.closes == (read.width == window)
            position += read.new
            if read.closes:
                ends.append(position)
            assert read.again == opened
            opened = prefix + overlap if read.closes else opened + read.new
    whole = plan(sum(pieces), window, overlap, prefix=prefix)
    places, position = [], 0
    for read in whole:
        position += read.new
        if read.closes:
            places.append(position)
    assert ends == places


@given(sizes(), st.integers(1, 60), st.integers(0, 19))
def test_cached_tokens_are_not_read_again(size: tuple[int, int], new: int, opened: int) -> None:
    window, overlap = size
    opened %= window
    with_cache = plan(new, window, overlap, opened=opened, cached=opened)
    without = plan(new, window, overlap, opened=opened)
    assert with_cache[0].again == 0 and with_cache[0].cached == opened and without[0].again == opened
    assert with_cache[1:] == without[1:]
    assert [(r.new, r.closes) for r in with_cache] == [(r.new, r.closes) for r in without]


@given(sizes(), st.integers(1, 60))
def test_an_encoder_closes_its_last_window_too(size: tuple[int, int], new: int) -> None:
    reads = plan(new, *size, leave_open=False)
    assert all(read.closes for read in reads)
    assert [r.new for r in reads] == [r.new for r in plan(new, *size)]


def test_an_idle_row_reads_nothing() -> None:
    assert IDLE.width == 0 and not IDLE.closes


@given(st.integers(1, 12), sizes())
def test_a_segment_fills_its_windows_exactly(count: int, size: tuple[int, int]) -> None:
    length = segment_length(count, *size)
    reads = plan(length, *size)
    assert len(reads) == count and all(read.closes for read in reads)
    assert segment_length(1, *size) == size[0]


def test_a_segment_of_the_paper() -> None:
    assert segment_length(20, 300) == 6000 and segment_length(3, 10, 3) == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "window=.*: it must be at least 1 token"),
        ((-3, 0), "window=.*: it must be at least 1 token"),
        ((5, -1), "overlap=-1: it must be at least 0"),
        ((5, 5), "at most 4"),
        ((5, 9), "smaller than window=5"),
        ((5, 2, 3), "no room for new tokens"),
        ((5, 0, -1), "no room for new tokens|at least 0"),
    ],
)
def test_impossible_sizes_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(*arguments)


def test_possible_sizes_are_not_refused() -> None:
    check(1, 0)
    check(5, 4)
    check(5, 2, 2)


@pytest.mark.parametrize("make", [lambda: list(windows(9, 4, 4)), lambda: segment_length(2, 4, 4)])
def test_sizes_are_checked_before_anything_is_read(make) -> None:
    with pytest.raises(ValueError, match="overlap"):
        make()
