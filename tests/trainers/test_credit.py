"""From rewards to an advantage a token: by trajectory, by step, by token with a critic; corrections and selection."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flywheel.errors import ConfigError
from flywheel.sections import RlConfig
from flywheel.trainers.advantages import others_mean
from flywheel.trainers.algorithms import algorithm
from flywheel.trainers.corrections import CORRECTIONS, correct, importance_weights
from flywheel.trainers.credit import credit, selected, weighed
from flywheel.trainers.critic import make_critic
from flywheel.trainers.model import fingerprint
from flywheel.trainers.rollout import Rollout
from flywheel.trainers.scoring import Score
from tests.tiny import Tiny, episodes, some_tasks
from tests.trainers.test_rl import learner, trainer
from tests.trainers.test_steps import rollout

OLD = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, -1.0, -9.0]])
ROLLOUT = torch.tensor([[-1.1, -1.0, -2.5], [-1.0, -1.001, 0.0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


def scores(rollouts: list[Rollout], **entropies: list[float]) -> list[Score]:
    """As if the policy said of every token what was recorded, with these entropies a step (two tokens each)."""
    steps = entropies["steps"]
    made, at = [], 0
    for one in rollouts:
        tokens = int(one.sample.train_mask.sum())
        entropy_K = np.repeat(np.array(steps[at : at + tokens // 2], np.float32), 2)
        made.append(Score(np.zeros(tokens, np.float32), entropy_K, torch.zeros(tokens, 4)))
        at += tokens // 2
    return made


def test_by_trajectory_every_token_gets_the_same() -> None:
    one, other = credit(algorithm("grpo"), [rollout(1.0, [1, 2]), rollout(0.0, [1])], horizon=99)
    assert one.advantage_K.tolist() == pytest.approx([0.5**0.5] * 4, abs=1e-5)
    assert (one.advantage, other.advantage) == pytest.approx((0.5**0.5, -(0.5**0.5)), abs=1e-5)
    assert one.step_K.tolist() == [0, 0, 1, 1]
    assert (one.steps, other.steps) == (2, 1)
    assert one.informative
    assert one.kept_K.all()
    assert (one.weight_K == 1).all()


def test_by_step_every_token_gets_its_steps() -> None:
    rollouts = [rollout(1.0, [1, 2], unread=(1,)), rollout(0.0, [1])]
    one, other = credit(algorithm("step_grpo"), rollouts, horizon=99)
    high, low = 2 / 3, -1 / 3
    deviation = 3**-0.5
    expected = np.array([high, high, low, low]) / deviation
    assert one.advantage_K == pytest.approx(expected, abs=1e-4)
    assert other.advantage_K == pytest.approx(np.full(2, low / deviation), abs=1e-4)


def test_a_mean_of_nothing_does_not_make_a_step_uninformative() -> None:
    """Steps that cancel out still teach."""
    half = rollout(1.0, [1, 2], unread=(1,))
    one, _ = credit(algorithm("step_grpo"), [half, half], horizon=9)
    assert one.advantage == pytest.approx(0)
    assert one.informative


def test_steps_of_low_entropy_are_left_out_and_still_counted() -> None:
    rollouts = [rollout(1.0, [1, 2, 3]), rollout(0.0, [1, 2])]
    credits = credit(algorithm("dart"), rollouts, horizon=99)
    kept = selected(credits, scores(rollouts, steps=[0.1, 2.0, 1.0, 0.3, 0.5]))
    assert [one.kept_K.tolist() for one in kept] == [[False, False, True, True, True, True], [True] * 4]
    assert [one.steps for one in kept] == [3, 2]


def test_a_correction_starts_ratios_from_the_trainer_and_weighs() -> None:
    rollouts = [rollout(1.0, [1]), rollout(0.0, [1])]
    credits = credit(algorithm("grpo"), rollouts, horizon=99)
    seen = [Score(np.array([0.5, -0.5], np.float32), np.zeros(2, np.float32), torch.zeros(2, 4))] * 2
    made = weighed(algorithm("grpo"), RlConfig(correction="token_tis", correction_high=1.5), credits, seen)
    assert made[0].old_logp_K.tolist() == [0.5, -0.5]
    assert made[0].weight_K.tolist() == pytest.approx([1.5, np.exp(-0.5)])
    rejecting = weighed(algorithm("grpo"), RlConfig(correction="token_rejection"), credits, seen)
    assert rejecting[0].kept_K.tolist() == [True, True]
    strict = RlConfig(correction="token_rejection", correction_low=0.9, correction_high=1.1)
    assert not weighed(algorithm("grpo"), strict, credits, seen)[0].kept_K.any()


@pytest.mark.parametrize("name", CORRECTIONS)
def test_named_corrections_weigh_or_reject_and_never_both(name: Any) -> None:
    weight_BT, kept_BT = correct(name, OLD, ROLLOUT, MASK)
    assert not (kept_BT & ~MASK).any()
    weighs, rejects = bool((weight_BT[MASK] != 1).any()), bool((kept_BT != MASK).any())
    assert (weighs, rejects) == (name in ("token_tis", "icepop", "sequence_tis"), name.endswith("rejection"))


def test_bounds_of_corrections_can_be_given_and_must_leave_room() -> None:
    given = correct("token_tis", OLD, ROLLOUT, MASK, high=3.0)[0]
    assert torch.equal(given, importance_weights(OLD, ROLLOUT, MASK, high=3.0))
    with pytest.raises(ConfigError, match=r"'icepop' are 0.5 and 0.4; give rl\.correction_low below"):
        correct("icepop", OLD, ROLLOUT, MASK, high=0.4)
    with pytest.raises(ConfigError, match="above 0 where it rejects"):
        correct("token_rejection", OLD, ROLLOUT, MASK, low=0.0)


def test_a_critic_is_not_optional_where_advantages_rest_on_it() -> None:
    with pytest.raises(ValueError, match="'ppo' needs a critic"):
        credit(algorithm("ppo"), [rollout(1.0, [1])], horizon=9)


def test_a_critic_of_values_knows_what_a_tasks_other_rollouts_got() -> None:
    """A success is worth more where others fail; what a task's rollouts share is nobody's advantage."""
    easy = [rollout(reward, [1], group="easy") for reward in (1.0, 1.0, 1.0, 0.0)]
    hard = [rollout(reward, [1], group="hard") for reward in (1.0, 0.0, 0.0, 0.0)]
    rollouts = [*easy, *hard]
    critic = make_critic("value", 4, RlConfig(), torch.device("cpu"))
    credits = credit(algorithm("ppo"), rollouts, horizon=9, scores=scores(rollouts, steps=[0.0] * 8), critic=critic)
    assert credits[4].advantage > 1.2 * credits[0].advantage > 0
    assert credits[3].advantage < 1.2 * credits[5].advantage < 0
    lessons = [one.lesson for one in credits if one.lesson]
    expected = others_mean(torch.tensor([r.reward for r in rollouts]), torch.tensor([0] * 4 + [1] * 4))
    assert torch.stack([lesson.value_N for lesson in lessons])[:, 0].tolist() == pytest.approx(expected.tolist())


def test_the_policy_stays_frozen_while_its_critic_is_pretrained(tiny: Tiny, tmp_path: Path) -> None:
    played = episodes(tiny, some_tasks(2), samples=2)
    rollouts = [Rollout(t, tiny.chat.sample(t), float(n % 2)) for n, t in enumerate(played)]
    policy = tiny.fresh()
    made = trainer(policy, tmp_path, algorithm="vapo", value_pretraining=1)
    before = fingerprint(policy.model.parameters())
    frozen = made.update(rollouts, made.credit(rollouts))
    assert (frozen["policy_frozen"], fingerprint(policy.model.parameters())) == (1.0, before)
    assert "loss" not in frozen
    trained = made.update(rollouts, made.credit(rollouts))
    assert trained["policy_frozen"] == 0.0
    assert fingerprint(policy.model.parameters()) != before
    assert trained["explained_variance"] > frozen["explained_variance"]


def test_scores_are_those_of_the_policy(tiny: Tiny) -> None:
    """Recorded logprobs are met, and a row at a time gives what rows together give."""
    samples = [tiny.chat.sample(t) for t in episodes(tiny, some_tasks(3))]
    policy = tiny.fresh()
    together, alone = (learner(policy, n).score(samples, hidden=True) for n in (10**6, 1))
    for sample, one, other in zip(samples, together, alone, strict=True):
        assert one.logp_K == pytest.approx(sample.logprobs[sample.train_mask], abs=1e-4)
        assert one.logp_K == pytest.approx(other.logp_K, abs=1e-5)
        assert one.entropy_K == pytest.approx(other.entropy_K, abs=1e-5)
        assert torch.allclose(one.hidden_KD, other.hidden_KD, atol=1e-4)
        assert one.hidden_KD.shape == (len(one.logp_K), policy.model.config.text_config.hidden_size)
    assert learner(policy).score(samples, hidden=False)[0].hidden_KD.numel() == 0
