import pickle
import time

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset

from onward.data.segments import Lanes, Segments, collate
from onward.data.tokens import TokenizedDocument


def tokens(*lengths):
    """Documents whose tokens are all different, so that each can be followed."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [
        TokenizedDocument(f"d{start}", torch.arange(start, start + length, dtype=torch.int32), length, length)
        for start, length in zip(starts, lengths, strict=True)
    ]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    length=st.integers(1, 15),
    min_length=st.integers(1, 5),
)
def test_every_token_is_read_once_and_predicted_once(lengths, length, min_length):
    min_length = min(min_length, length)
    documents = tokens(*lengths)
    segments = Segments(documents, length, min_length)
    items = [segments[index] for index in range(len(segments))]
    read = torch.cat([item["input_ids"] for item in items]).tolist()
    labels = torch.cat([item["shift_labels"] for item in items]).tolist()
    assert read == list(range(sum(lengths)))
    firsts = {int(document.ids[0]) for document in documents}
    assert [label for label in labels if label != -100] == [token for token in read if token not in firsts]
    for token, label in zip(read, labels, strict=True):
        assert label == (-100 if token + 1 in firsts or token + 1 == len(read) else token + 1)
    for (document, start, end), item in zip(segments.spans, items, strict=True):
        assert start % length == 0 and len(item["input_ids"]) == end - start < length + min_length
        assert end - start >= min(min_length, lengths[document])
        assert item["input_ids"].dtype == item["shift_labels"].dtype == torch.int64


def test_segments_of_a_document():
    segments = Segments(tokens(9), length=4)
    assert len(segments) == 2
    assert segments[0]["shift_labels"].tolist() == [1, 2, 3, 4]
    assert segments[1]["input_ids"].tolist() == [4, 5, 6, 7, 8]
    assert segments[1]["shift_labels"].tolist() == [5, 6, 7, 8, -100]


def test_segments_that_make_no_sense():
    with pytest.raises(ValueError, match="length=0"):
        Segments(tokens(3), 0)
    with pytest.raises(ValueError, match="min_length=6: choose it between 1 and length=4"):
        Segments(tokens(3), 4, min_length=6)
    with pytest.raises(ValueError, match="no documents"):
        Segments([], 4)
    with pytest.raises(ValueError, match="document 'd3' has no tokens: leave it out"):
        Segments(tokens(3, 0), 4)


lane_options = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 30), min_size=1, max_size=8),
        "lanes": st.integers(1, 8),
        "length": st.integers(1, 12),
        "epochs": st.integers(1, 3),
        "seed": st.none() | st.integers(-3, 3),
    }
)


def lanes_of(lengths, lanes, length, epochs, seed):
    return Lanes(tokens(*lengths), min(lanes, epochs * len(lengths)), length, epochs=epochs, seed=seed)


def grid(stream):
    """Items by lane and step."""
    assert len(stream) == stream.steps * stream.lanes
    return [[stream[step * stream.lanes + lane] for step in range(stream.steps)] for lane in range(stream.lanes)]


def readings(lane):
    """The documents that a lane reads, each as the (step, first token, tokens) of its segments."""
    read = []
    for step, item in enumerate(lane):
        if item["starts_document"]:
            read.append([])
        if len(item["input_ids"]):
            read[-1].append((step, int(item["input_ids"][0]), len(item["input_ids"])))
    return read


@given(options=lane_options)
def test_lanes_read_every_token_once_in_every_epoch(options):
    documents, items = tokens(*options["lengths"]), sum(grid(lanes_of(**options)), [])
    read = torch.cat([item["input_ids"] for item in items]).tolist()
    labels = torch.cat([item["shift_labels"] for item in items]).tolist()
    every, firsts = range(sum(options["lengths"])), {int(document.ids[0]) for document in documents}
    assert sorted(read) == sorted([*every] * options["epochs"])
    assert sorted(label for label in labels if label != -100) == sorted(
        [token for token in every if token not in firsts] * options["epochs"]
    )
    for token, label in zip(read, labels, strict=True):
        assert label == (-100 if token + 1 in firsts or token + 1 == len(every) else token + 1)
    for item in items:
        assert len(item["input_ids"]) == len(item["shift_labels"]) <= options["length"]
        assert item["input_ids"].dtype == item["shift_labels"].dtype == torch.int64
        assert item["starts_document"].dtype == torch.bool and item["starts_document"].shape == ()


@given(options=lane_options)
def test_a_lane_follows_a_document_to_its_end(options):
    firsts = {int(document.ids[0]): len(document) for document in tokens(*options["lengths"])}
    stream = lanes_of(**options)
    handed_out = []
    for number, lane in enumerate(grid(stream)):
        next_step = 0
        for document in readings(lane):
            first_step, first = document[0][:2]
            assert first in firsts and first_step == next_step
            assert [step for step, _, _ in document] == list(range(first_step, first_step + len(document)))
            assert [start - first for _, start, _ in document] == list(range(0, firsts[first], stream.length))
            assert sum(count for _, _, count in document) == firsts[first]
            handed_out.append((first_step, number, first))
            next_step = first_step + len(document)
        for item in lane[next_step:]:
            assert not len(item["input_ids"]) and not item["starts_document"]
    # Free lanes, the lower first, take the documents in the order of their epochs; nobody waits while there are any.
    order = [first for _, _, first in sorted(handed_out)]
    for epoch in range(options["epochs"]):
        assert set(order[epoch * len(firsts) : (epoch + 1) * len(firsts)]) == set(firsts)
    if options["seed"] is None:
        assert order == [*firsts] * options["epochs"]
    last = max(step for step, _, _ in handed_out)
    assert all(len(item["input_ids"]) for lane in grid(stream) for item in lane[:last])


@given(options=lane_options, at_once=st.integers(1, 3), ranks=st.integers(1, 3), turns=st.integers(1, 2))
def test_lanes_are_the_same_on_all_ranks(options, at_once, ranks, turns):
    lanes = at_once * ranks * turns
    documents = tokens(*options["lengths"], *[2] * lanes)
    stream = Lanes(documents, lanes, options["length"], epochs=options["epochs"], seed=options["seed"])
    alone = grid(stream)
    for rank in range(ranks):
        batches = BatchSampler(SequentialSampler(stream), at_once, drop_last=False)
        shard = list(BatchSamplerShard(batches, ranks, rank))
        assert len(shard) == stream.steps * turns
        for step in range(stream.steps):
            for turn in range(turns):
                first = (turn * ranks + rank) * at_once
                for row, index in enumerate(shard[step * turns + turn]):
                    item = stream[index]
                    assert all(torch.equal(item[field], alone[first + row][step][field]) for field in item)


def test_the_order_depends_on_seed_and_epoch_only():
    def order(documents, **options):
        lanes = grid(Lanes(documents, **options))
        taken = [(step, n, first) for n, lane in enumerate(lanes) for (step, first, _), *_ in readings(lane)]
        return [first for _, _, first in sorted(taken)]

    documents = tokens(*[3] * 20)
    two_epochs = order(documents, lanes=1, length=4, epochs=2, seed=5)
    assert two_epochs[:20] != two_epochs[20:] and two_epochs[:20] == order(documents, lanes=1, length=4, seed=5)
    assert two_epochs[:20] != order(documents, lanes=1, length=4, seed=6)
    assert two_epochs == order(documents, lanes=7, length=2, epochs=2, seed=5)
    longer = [TokenizedDocument(d.name, torch.cat([d.ids, d.ids]), 6, 6) for d in documents]
    assert two_epochs == order(longer, lanes=3, length=2, epochs=2, seed=5)
    # Resuming needs this very order, whatever the versions of Python and torch.
    assert order(tokens(*[1] * 8), lanes=1, length=1, seed=0) == [3, 6, 5, 0, 4, 7, 1, 2]


def test_lanes_step_by_step():
    stream = Lanes(tokens(5, 2, 1, 4), lanes=2, length=2, seed=None)
    rows = [[(item["input_ids"].tolist(), bool(item["starts_document"])) for item in lane] for lane in grid(stream)]
    assert stream.steps == 4
    assert rows[0] == [([0, 1], True), ([2, 3], False), ([4], False), ([], False)]
    assert rows[1] == [([5, 6], True), ([7], True), ([8, 9], True), ([10, 11], False)]
    assert [item["shift_labels"].tolist() for item in grid(stream)[0]] == [[1, 2], [3, 4], [-100], []]
    assert stream[-1]["input_ids"].tolist() == [10, 11]
    with pytest.raises(IndexError):
        stream[len(stream)]


def test_the_step_is_the_whole_position():
    stream = Lanes(tokens(9, 4, 6, 5, 8), lanes=3, length=2, epochs=2)
    whole = list(DataLoader(stream, batch_size=3, collate_fn=collate))
    again = pickle.loads(pickle.dumps(Lanes(stream.documents, 3, 2, epochs=2)))
    assert len(whole) == stream.steps
    for step in range(stream.steps + 1):
        rest = Subset(again, range(step * again.lanes, len(again)))
        for batch, expected in zip(DataLoader(rest, batch_size=3, collate_fn=collate), whole[step:], strict=True):
            assert batch.keys() == expected.keys() and all(torch.equal(batch[key], expected[key]) for key in batch)


def test_a_long_run_is_planned_at_once():
    ids = torch.arange(1000, dtype=torch.int32)
    documents = [TokenizedDocument(str(count), ids[: 1 + count % 1000], 1, 1) for count in range(30_000)]
    start = time.process_time()
    stream = Lanes(documents, lanes=64, length=32, epochs=2)
    assert len(stream) > 900_000
    for index in range(0, len(stream), 1000):
        stream[index]
    assert time.process_time() - start < 5
    assert len(pickle.dumps((stream._taken, stream._steps))) < 2_000_000


def test_lanes_that_make_no_sense():
    documents = tokens(3, 4)
    with pytest.raises(ValueError, match="lanes=0"):
        Lanes(documents, 0, 4)
    with pytest.raises(ValueError, match="length=0"):
        Lanes(documents, 1, 0)
    with pytest.raises(ValueError, match="epochs=0"):
        Lanes(documents, 1, 4, epochs=0)
    with pytest.raises(ValueError, match="no documents"):
        Lanes([], 1, 4)
    with pytest.raises(ValueError, match="document 'd3' has no tokens"):
        Lanes(tokens(3, 0), 1, 4)
    idle = (
        "lanes=7: 3 lanes would have no document in the whole run, because 2 documents in 2 epochs fill only 4; "
        "use at most 4 lanes, or more epochs"
    )
    with pytest.raises(ValueError, match=idle):
        Lanes(documents, 7, 4, epochs=2)
    assert Lanes(documents, 4, 4, epochs=2).steps == 1


def test_collate_pads_on_the_right():
    segments = Segments(tokens(4, 2), 4)
    batch = collate([segments[0], segments[1]], pad_token_id=7)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["shift_labels"].tolist() == [[1, 2, 3, -100], [5, -100, -100, -100]]


def test_collate_leaves_the_mask_out_when_nothing_is_padded():
    segments = Segments(tokens(8), 4)
    assert set(collate([segments[0], segments[1]])) == {"input_ids", "shift_labels", "labels"}
    with pytest.raises(ValueError, match="no segments"):
        collate([])


def test_collate_marks_the_rows_that_start_a_document():
    stream = Lanes(tokens(5, 2, 1), lanes=2, length=2, seed=None)
    first, second, third = DataLoader(stream, batch_size=2, collate_fn=collate)
    assert first["starts_document"].tolist() == [True, True] and "attention_mask" not in first
    assert second["starts_document"].tolist() == [False, True]
    assert second["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert third["input_ids"].tolist() == [[4], [0]] and third["attention_mask"].tolist() == [[1], [0]]
    assert third["shift_labels"].tolist() == [[-100], [-100]]


def test_collate_pads_rows_that_are_all_empty_to_one_token():
    stream = Lanes(tokens(6, 1, 1), lanes=3, length=2, seed=None)
    batch = collate([stream[len(stream) - 2], stream[len(stream) - 1]], pad_token_id=7)
    assert batch["input_ids"].tolist() == [[7], [7]] and batch["attention_mask"].tolist() == [[0], [0]]
    assert batch["shift_labels"].tolist() == batch["labels"].tolist() == [[-100], [-100]]
    assert batch["starts_document"].tolist() == [False, False]


def test_segments_feed_a_data_loader():
    loader = DataLoader(Segments(tokens(10, 5), 4), batch_size=2, collate_fn=collate)
    assert [tuple(batch["input_ids"].shape) for batch in loader] == [(2, 4), (2, 5)]
