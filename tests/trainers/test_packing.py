"""Packing is exact: logits, loss and gradients are those of separate sequences; and it fails hard when it is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import PackingError
from flywheel.modeling.features import look
from flywheel.modeling.qwen import embed, hidden_states
from flywheel.trainers.packing import PackedRow, document_lengths, pack, rows_of
from flywheel.trainers.sft import row_loss
from flywheel.types import TrainingSample
from tests.tiny import Tiny, episodes, some_tasks


@pytest.fixture(scope="module")
def samples(tiny: Tiny) -> list[TrainingSample]:
    """Conversations with two to four screenshots, of different lengths, sampled and re-read alike."""
    return [tiny.chat.sample(t) for t in episodes(tiny, some_tasks(4))]


def packed(tiny: Tiny, samples: list[TrainingSample]) -> PackedRow:
    return pack(samples, image_id=tiny.chat.image_id)


def test_logits_are_those_of_separate_sequences(tiny: Tiny, samples: list[TrainingSample]) -> None:
    policy = tiny.fresh()
    with torch.no_grad():
        together = policy.distribution(packed(tiny, samples))
        apart = torch.cat([policy.distribution(packed(tiny, [sample])) for sample in samples])
    assert (together - apart)[apart.isfinite()].abs().max() < 1e-5 * apart[apart.isfinite()].abs().max()


def test_loss_and_gradients_are_those_of_separate_sequences(tiny: Tiny, samples: list[TrainingSample]) -> None:
    policy = tiny.fresh()
    count = float(sum(sample.weights.sum() for sample in samples))
    losses, gradients = [], []
    for rows in ([samples], [[sample] for sample in samples]):
        policy.model.zero_grad()
        total = torch.zeros(())
        for row in rows:
            loss = row_loss(policy, packed(tiny, row), count)
            loss.backward()
            total = total + loss.detach()
        losses.append(float(total))
        gradients.append([parameter.grad.clone() for parameter in policy.trainable if parameter.grad is not None])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(gradients[0]) == len(gradients[1]) == len(policy.trainable)
    for one, other in zip(*gradients, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


@settings(deadline=None, max_examples=15)
@given(order=st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_any_arrangement_gives_each_document_its_own_logprobs(
    tiny: Tiny, samples: list[TrainingSample], order: list[int]
) -> None:
    policy = tiny.fresh()
    with torch.no_grad():
        alone = [policy.logprobs(packed(tiny, [sample])) for sample in samples]
        row = packed(tiny, [samples[i] for i in order])
        together = policy.logprobs(row)
    expected = torch.cat([alone[i] for i in order])
    assert torch.allclose(together, expected, atol=1e-4)
    assert row.document_K.tolist() == [d for d, i in enumerate(order) for _ in range(len(alone[i]))]


def test_documents_that_see_each_other_give_other_logits(tiny: Tiny, samples: list[TrainingSample]) -> None:
    """Guards the tests above: the same row read as one document is far off, as with 3-row position ids elsewhere."""
    policy, row = tiny.fresh(), packed(tiny, samples)
    leaking = replace(row, position_ids_4N=row.position_ids_4N.copy())
    leaking.position_ids_4N[0] = np.arange(row.tokens)
    with torch.no_grad():
        assert (policy.logprobs(row) - policy.logprobs(leaking)).abs().max() > 1e-2


def test_a_document_is_untouched_by_what_its_neighbour_says(tiny: Tiny, samples: list[TrainingSample]) -> None:
    policy, (first, second) = tiny.fresh(), samples[:2]
    ids = first.input_ids.copy()
    ids[first.train_mask] = tiny.chat.tokenise(" 7")[0]
    with torch.no_grad():
        before, after = (
            policy.logprobs(packed(tiny, [neighbour, second]))[-int(second.train_mask.sum()) :]
            for neighbour in (first, replace(first, input_ids=ids))
        )
    assert torch.equal(before, after)


def test_a_row_says_where_everything_is(tiny: Tiny, samples: list[TrainingSample]) -> None:
    row = packed(tiny, samples)
    assert document_lengths(row.position_ids_4N) == [len(sample.input_ids) for sample in samples]
    assert (row.ids_N[row.predict_K + 1] == row.targets_K).all()
    assert row.targets_K.tolist() == np.concatenate([s.input_ids[s.train_mask] for s in samples]).tolist()
    assert row.logprobs_K.tolist() == np.concatenate([s.logprobs[s.train_mask] for s in samples]).tolist()
    assert row.tokens == sum(len(sample.input_ids) for sample in samples)


def test_row_0_counts_and_rows_1_to_3_are_rotary(tiny: Tiny, samples: list[TrainingSample]) -> None:
    row = packed(tiny, samples[:2])
    n = len(samples[0].input_ids)
    assert row.position_ids_4N[0, :n].tolist() == list(range(n))
    for place in (0, n):
        assert row.position_ids_4N[:, place].tolist() == [0, 0, 0, 0]
    text = row.ids_N != tiny.chat.image_id
    assert (np.ptp(row.position_ids_4N[1:, text], axis=0) == 0).all()
    assert (np.ptp(row.position_ids_4N[1:, ~text], axis=0) > 0).any()


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (None, "not None"),
        (np.arange(5), r"not \(5,\)"),
        (np.zeros((3, 5), np.int64), r"not \(3, 5\)"),
        (np.zeros((4, 0), np.int64), "restart at each document"),
        (np.tile(np.arange(1, 6), (4, 1)), "restart at each document"),
        (np.tile([0, 1, 3, 0, 1], (4, 1)), "restart at each document"),
        (np.tile([0, 1, 2, 1, 2], (4, 1)), "restart at each document"),
    ],
)
def test_position_ids_of_any_other_shape_are_refused(positions: np.ndarray | None, message: str) -> None:
    with pytest.raises(PackingError, match=message):
        document_lengths(positions)


def test_a_model_refuses_a_row_without_its_fourth_row(tiny: Tiny, samples: list[TrainingSample]) -> None:
    row = packed(tiny, samples)
    with pytest.raises(PackingError, match=r"\(4, tokens\)"):
        tiny.fresh().logprobs(replace(row, position_ids_4N=row.position_ids_4N[1:]))


def test_packed_attention_refuses_to_run_without_borders(tiny: Tiny, samples: list[TrainingSample]) -> None:
    """Whoever calls the language model past `PolicyModel` is stopped too."""
    policy, row = tiny.fresh(), packed(tiny, samples[:1])
    features = look(policy.model, tiny.chat, samples[0].images)
    embeds, places = embed(policy.model, torch.from_numpy(row.ids_N)[None], features)
    with pytest.raises(PackingError, match="without document lengths"):
        hidden_states(policy.model, embeds, places, features, torch.from_numpy(row.position_ids_4N)[:, None])


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: replace(s, images=s.images[:-1]),
        lambda s: replace(s, images=s.images[:-1], image_grids=s.image_grids[:-1]),
        lambda s: replace(s, image_grids=((1, 2, 2), *s.image_grids[1:])),
        lambda s: replace(s, images=(), image_grids=()),
    ],
)
def test_a_document_whose_images_are_missing_is_refused(tiny: Tiny, samples: list, break_it: object) -> None:
    with pytest.raises(PackingError, match="one image for each placeholder"):
        packed(tiny, [break_it(samples[0])])  # type: ignore[operator]


def test_features_that_were_lost_on_the_way_are_noticed(tiny: Tiny, samples: list[TrainingSample]) -> None:
    row = packed(tiny, samples[:1])
    with pytest.raises(PackingError, match="image tokens but 0 image features"):
        embed(tiny.model, torch.from_numpy(row.ids_N)[None], None)


def test_a_first_token_cannot_be_trained_on(tiny: Tiny, samples: list[TrainingSample]) -> None:
    mask = samples[0].train_mask.copy()
    mask[0] = True
    with pytest.raises(PackingError, match="first token"):
        packed(tiny, [replace(samples[0], train_mask=mask)])


def test_an_empty_document_is_refused(tiny: Tiny, samples: list[TrainingSample]) -> None:
    with pytest.raises(PackingError, match="is empty"):
        packed(tiny, [replace(samples[0], input_ids=samples[0].input_ids[:0], train_mask=samples[0].train_mask[:0])])


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(1, 40), max_size=12), most=st.integers(1, 60))
def test_rows_hold_each_document_once_and_in_order(lengths: list[int], most: int) -> None:
    documents = [
        TrainingSample(str(i), "", np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), (), ())
        for i, n in enumerate(lengths)
    ]
    rows = list(rows_of(documents, most))
    assert [document.trajectory_id for row in rows for document in row] == [d.trajectory_id for d in documents]
    for row in rows:
        assert len(row) == 1 or sum(len(document.input_ids) for document in row) <= most
