"""Rotary positions are those of the model's own `get_rope_index`, for any document and for any way of cutting it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.modeling.positions import Grid, rope_positions
from tests.tiny import Tiny

MERGE = 2
grids = st.tuples(st.just(1), st.integers(1, 5).map(MERGE.__mul__), st.integers(1, 5).map(MERGE.__mul__))
texts = st.integers(1, 9)
"""Pieces of a document: images, and texts of at least one token, so that two images never touch."""
turns = st.lists(st.tuples(texts, grids), max_size=4)


def document(turns: list[tuple[int, Grid]], tail: int, image_id: int) -> tuple[np.ndarray, list[Grid]]:
    ids: list[int] = []
    for text, (t, h, w) in turns:
        ids += [1] * text + [image_id] * (t * h * w // MERGE**2)
    return np.array(ids + [1] * tail, np.int64), [grid for _, grid in turns]


@settings(deadline=None, max_examples=150)
@given(turns=turns, tail=texts)
def test_equal_to_the_models_own(tiny: Tiny, turns: list[tuple[int, Grid]], tail: int) -> None:
    image_id = tiny.chat.image_id
    ids, grids = document(turns, tail, image_id)
    ours, after = rope_positions(ids, grids, image_id=image_id)
    ids_1N = torch.from_numpy(ids)[None]
    theirs, delta = tiny.model.model.get_rope_index(
        input_ids=ids_1N,
        mm_token_type_ids=(ids_1N == image_id).int(),
        image_grid_thw=torch.tensor(grids) if grids else None,
    )
    assert (torch.from_numpy(ours) == theirs[:, 0]).all()
    assert after == len(ids) + int(delta)


@settings(deadline=None, max_examples=100)
@given(turns=st.lists(st.tuples(texts, grids), min_size=1, max_size=4), tail=texts)
def test_deltas_continue_where_the_last_one_ended(turns: list[tuple[int, Grid]], tail: int) -> None:
    ids, grids = document(turns, tail, image_id=7)
    whole, end = rope_positions(ids, grids, image_id=7)
    parts, position = [], 0
    for turn in turns:
        delta, own = document([turn], 0, image_id=7)
        part, position = rope_positions(delta, own, image_id=7, start=position)
        parts.append(part)
    last, position = rope_positions(np.ones(tail, np.int64), [], image_id=7, start=position)
    assert (np.concatenate([*parts, last], 1) == whole).all()
    assert position == end


def test_two_images_side_by_side_are_told_apart_by_their_grids() -> None:
    """Nothing but the grids says where one ends: four tokens of 4 x 4 patches, then one of 2 x 2."""
    out_3N, after = rope_positions(np.full(5, 7), [(1, 4, 4), (1, 2, 2)], image_id=7)
    assert out_3N.T.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [2, 2, 2]]
    assert after == 3
