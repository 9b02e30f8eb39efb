"""Our own rules for groups, and relations between estimators that no golden figure states."""

import pytest
import torch

from flywheel.trainers.advantages import (
    batch_whitened,
    count_groups,
    discounted_returns,
    first_rows,
    gae,
    gigpo,
    group_ids,
    group_relative,
    informative_rows,
    length_adaptive_lambda,
    others_mean,
    overlong_penalty,
    step_returns,
)

REWARD = torch.tensor([1.0, 0.0, 0.3, 0.3, 0.3, 1.0, 0.0], dtype=torch.float64)
GROUP = torch.tensor([7, 7, 2, 2, 2, 5, 7])


@pytest.mark.parametrize("scale", ["std", "none", "leave_one_out"])
def test_a_group_of_one_and_a_group_without_spread_teach_nothing(scale: str) -> None:
    advantage = group_relative(REWARD, GROUP, scale=scale)  # type: ignore[arg-type]
    assert advantage[2:6].tolist() == [0.0] * 4
    assert advantage[0] > 0 > advantage[1]


def test_rounding_noise_is_not_spread() -> None:
    reward = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)
    assert reward[0] != reward[1]
    assert group_relative(reward, torch.zeros(2).long()).tolist() == [0.0, 0.0]


def test_a_group_of_one_gets_its_raw_reward_on_request() -> None:
    assert group_relative(REWARD, GROUP, scale="none", singleton="raw")[5] == 1.0


def test_groups_are_counted() -> None:
    counts = count_groups(REWARD, GROUP)
    assert (counts.groups, counts.singletons, counts.flat) == (3, 1, 1)
    assert counts.informative == pytest.approx(1 / 3)
    assert informative_rows(REWARD, GROUP).tolist() == [True, True, False, False, False, False, True]


def test_order_of_rows_does_not_matter() -> None:
    order = torch.randperm(len(REWARD), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(group_relative(REWARD[order], GROUP[order]), group_relative(REWARD, GROUP)[order])


def test_leave_one_out_is_the_reward_less_the_mean_of_the_others() -> None:
    advantage = group_relative(REWARD, GROUP, scale="leave_one_out")
    assert advantage[0] == pytest.approx(1.0 - 0.0)
    assert advantage[1] == pytest.approx(0.0 - 0.5)


def test_others_are_believed_the_more_the_more_there_are() -> None:
    """Rows of a group of three, of a pair, and one alone; the mean of all other rows counts as one row."""
    reward_B, group_B = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 1, 1, 2])
    all_B = [2 / 5, 3 / 5, 2 / 5, 2 / 5, 3 / 5, 3 / 5]
    others = [(1 + all_B[0]) / 3, (2 + all_B[1]) / 3, (1 + all_B[2]) / 3, all_B[3] / 2, (1 + all_B[4]) / 2, all_B[5]]
    assert others_mean(reward_B, group_B).tolist() == pytest.approx(others)


def test_the_length_baseline_needs_lengths() -> None:
    with pytest.raises(ValueError, match="token count"):
        group_relative(REWARD, GROUP, baseline="length")


def test_one_group_for_each_reward() -> None:
    with pytest.raises(ValueError, match="one entry a row"):
        group_relative(REWARD, GROUP[:-1])


def test_whitening_by_row_ignores_lengths_and_by_token_does_not() -> None:
    short, long = torch.full((7,), 2), torch.tensor([9, 1, 1, 1, 1, 1, 1])
    by_row = [batch_whitened(REWARD, GROUP, tokens, unit="row") for tokens in (short, long)]
    by_token = [batch_whitened(REWARD, GROUP, tokens, unit="token") for tokens in (short, long)]
    torch.testing.assert_close(*by_row)
    assert not torch.allclose(*by_token)


def test_observations_cost_no_discount() -> None:
    reward = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    mask = torch.tensor([[True, False, False, True]])
    assert discounted_returns(reward, mask, 0.5).tolist() == [[0.5, 0.0, 0.0, 1.0]]


def test_gae_at_lambda_one_is_the_return_less_the_value() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 6, generator=generator) > 0.3
    reward = reward * mask
    advantage, returns = gae(reward, value, mask, gamma=1.0, lam=1.0)
    torch.testing.assert_close(returns[mask], discounted_returns(reward, mask)[mask])
    torch.testing.assert_close(advantage[mask], (returns - value)[mask])


def test_the_adaptive_lambda_stays_between_0_and_1() -> None:
    assert length_adaptive_lambda(torch.tensor([0, 1, 19, 20, 40])).tolist() == [0, 0, 0, 0, 0.5]


def test_returns_of_steps_follow_their_own_trajectory() -> None:
    reward, trajectory = torch.tensor([0.0, 0.0, 1.0, 4.0]), torch.tensor([0, 1, 0, 1])
    assert step_returns(reward, trajectory, 0.5).tolist() == [0.5, 2.0, 1.0, 4.0]
    assert first_rows(torch.zeros(4).long(), trajectory).tolist() == [True, True, False, False]


def test_gigpo_compares_steps_at_the_same_anchor_of_the_same_task() -> None:
    score, returns = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0.5, 1.0, 0.0, 0.0])
    task, anchor = torch.tensor([0, 0, 0, 1]), torch.tensor([3, 4, 3, 3])
    episode = group_relative(score, task, scale="none")
    step = gigpo(score, returns, task, anchor) - episode
    torch.testing.assert_close(step, torch.tensor([0.25, 0.0, -0.25, 0.0]))


def test_ids_follow_names() -> None:
    assert group_ids(["b", "a", "b"]).tolist() == [0, 1, 0]


def test_the_overlong_penalty_falls_from_0_to_minus_the_factor() -> None:
    assert overlong_penalty(torch.tensor([5.0, 8.0, 9.0, 10.0]), 10, 2, 0.5).tolist() == [0.0, 0.0, -0.25, -0.5]
