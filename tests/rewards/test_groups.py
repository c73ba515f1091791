"""Properties of every group reward: order has no effect, and a configuration names it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from mmgrpo.rewards.groups.diversity import DiversityAdjusted
from mmgrpo.rewards.groups.explorability import Explorability
from mmgrpo.rewards.groups.likelihoods import Curiosity, LikelihoodConsistency, SelfCertainty, Unlikeliness
from mmgrpo.rewards.groups.of_task import OfTask
from mmgrpo.rewards.groups.pairs import PairwiseWinRate, Tournament
from mmgrpo.rewards.groups.rarity import Rarity, UniqueFormulas
from mmgrpo.rewards.groups.sample_chains import AtEnd, OfLater, OfPromptTemplate
from mmgrpo.rewards.groups.substitute_references import AcrossPromptTemplates, OverReference
from mmgrpo.rewards.groups.text_parts import Attempts, OnPart
from mmgrpo.rewards.groups.usefulness import WhereUseful
from mmgrpo.rewards.groups.verifiers import Conciseness, NoisyVerifier, PartialCredit
from mmgrpo.rewards.groups.votes import MajorityVote, SemanticClusters

from mmgrpo.config import RewardConfig
from mmgrpo.config.registry import REWARDS
from mmgrpo.errors import ConfigError
from mmgrpo.scoring import NamedReward, score
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample, Score
from tests.rewards.grouped import column_chance, column_score, plain

HERE = "python:tests.rewards.test_groups"
REWARDS_OF_GROUPS: dict[str, Callable[..., Any]] = {
    "pairwise_win_rate": PairwiseWinRate(of=column_score),
    "pairwise_win_rate soft": PairwiseWinRate(of=column_score, soft=True, temperature=0.3),
    "tournament": Tournament(of=column_score),
    "tournament matches": Tournament(of=column_score, seeding="random", placing="matches"),
    "majority_vote": MajorityVote(),
    "majority_vote share": MajorityVote("share", entropy=0.5),
    "semantic_clusters": SemanticClusters(),
    "semantic_clusters entails": SemanticClusters(lambda a, b: (a.text or "")[:1] == (b.text or "")[:1]),
    "diversity_adjusted": DiversityAdjusted(column_score, size=1),
    "diversity_adjusted bonus": DiversityAdjusted(column_score, rule="bonus", size=1),
    "unlikeliness": Unlikeliness(column_score),
    "self_certainty": SelfCertainty(),
    "curiosity": Curiosity(),
    "on_part": OnPart(column_score, start=" "),
    "attempts": Attempts(column_score, start="b"),
    "explorability": Explorability(column_score),
    "likelihood_consistency": LikelihoodConsistency(column_score, column_chance),
    "noisy_verifier": NoisyVerifier(column_score, false_positive=0.1),
    "conciseness": Conciseness(column_score),
    "partial_credit": PartialCredit(column_score, column_chance),
    "rarity": Rarity(column_score, ["a", "b"]),
    "unique_formulas": UniqueFormulas(column_score),
    "across_prompt_templates": AcrossPromptTemplates(column_score),
    "over_reference": OverReference(column_score, column="chance"),
    "where_useful": WhereUseful(column_score, ["a"]),
    "of_prompt_template": OfPromptTemplate(column_score, [None]),
    "of_later": OfLater(column_score, [None], "better"),
    "at_end": AtEnd(column_score),
    "of_task": OfTask("other"),
}


def random_samples(seed: int) -> list[Sample]:
    """Groups of 1 to 7 members, some of them with gaps."""
    draw = random.Random(seed)
    samples = []
    for group in draw.sample(range(100), 5):
        for member in range(draw.randint(1, 7)):
            columns = {"score": draw.choice([0.0, 0.5, 1.0, 1.0, None, math.nan]), "chance": draw.random()}
            text = draw.choice(["a b", "a", "b c", "c", "A", None])
            tokens = [1] * draw.randint(1, 20)
            logprob, certainty = -draw.random(), draw.random()
            sample = Sample(Prompt("q", columns=columns), group, member, text=text, tokens=tokens)
            samples.append(replace(sample, logprob=logprob, values={"certainty": certainty, "entropy": 1 - certainty}))
    return samples


@pytest.mark.parametrize("name", REWARDS_OF_GROUPS)
def test_the_order_of_samples_does_not_matter(name: str):
    reward = REWARDS_OF_GROUPS[name]
    for seed in range(10):
        samples = random_samples(seed)
        values = plain(reward(samples))
        order = random.Random(seed).sample(range(len(samples)), len(samples))
        shuffled = plain(reward([samples[row] for row in order]))
        assert shuffled == pytest.approx([values[row] for row in order], nan_ok=True)


@pytest.mark.parametrize("name", [name for name in REWARDS_OF_GROUPS if not name.startswith("tournament")])
def test_the_members_numbers_do_not_matter(name: str):
    """They decide the draw of a tournament."""
    reward = REWARDS_OF_GROUPS[name]
    for seed in range(10):
        samples = random_samples(seed)
        renumbered = [replace(sample, member=100 - sample.member) for sample in samples]
        assert plain(reward(renumbered)) == pytest.approx(plain(reward(samples)), nan_ok=True)


@pytest.mark.parametrize("name", REWARDS_OF_GROUPS)
def test_each_group_is_scored_separately(name: str):
    reward, samples = REWARDS_OF_GROUPS[name], random_samples(3)
    values = plain(reward(samples))
    for group in {sample.group for sample in samples}:
        rows = [row for row, sample in enumerate(samples) if sample.group == group]
        assert plain(reward([samples[row] for row in rows])) == pytest.approx(
            [values[row] for row in rows], nan_ok=True
        )


@pytest.mark.parametrize("name", REWARDS_OF_GROUPS)
def test_no_samples_no_values(name: str):
    assert list(REWARDS_OF_GROUPS[name]([])) == []


def explained(samples: Sequence[Sample]) -> list[Score | None]:
    """A reward that says 1 and why, but not of the first sample."""
    return [Score(1.0, {"seen": sample.text}) if i else None for i, sample in enumerate(samples)]


@pytest.mark.parametrize(
    "wrap",
    [
        DiversityAdjusted,
        Unlikeliness,
        NoisyVerifier,
        Conciseness,
        lambda of: LikelihoodConsistency(of, column_chance),
    ],
)
def test_explanations_of_the_inner_reward_are_passed_on(wrap: Callable[..., Any]):
    samples = [
        Sample(Prompt("q", columns={"chance": 0.5}), 0, i, text=f"t{i}", tokens=[1], logprob=-1.0) for i in range(3)
    ]
    values = wrap(explained)(samples)
    assert values[0] is None
    assert [value.explanation for value in values[1:]] == [{"seen": "t1"}, {"seen": "t2"}]
    assert all(value.value > 0 for value in values[1:])


def test_a_million_characters():
    texts = ["a " * 500_000, "\u0301" * 1_000_000, "<answer>" * 100_000, "\\boxed{" * 100_000, "a" * 1_000_000]
    samples = [Sample(Prompt("q"), 0, i, text=text) for i, text in enumerate(texts)]
    assert plain(MajorityVote(extract="boxed")(samples)) == [0] * 5
    assert plain(MajorityVote("share")(samples)) == [0] * 5  # nothing so long is an answer
    assert plain(SemanticClusters(extract="tag")(samples)) == [0.2] * 5
    values = DiversityAdjusted(lambda samples: [1.0] * 5)(samples)
    assert values == pytest.approx([1] * 5, abs=0.01)


def test_every_reward_of_groups_is_tried_here():
    of_groups = {name for name, target in REWARDS.items() if ".rewards.groups." in target}
    assert of_groups == {name.partition(" ")[0] for name in REWARDS_OF_GROUPS}


def longer(first: Sample, second: Sample) -> bool:
    return len(first.text or "") > len(second.text or "")


class Closer:
    """A judge with a custom setting."""

    def __init__(self, to: int) -> None:
        self._to = to

    def __call__(self, first: Sample, second: Sample) -> bool:
        a, b = (abs(len(sample.text or "") - self._to) for sample in (first, second))
        return a < b


def counted(completions: Sequence[str], **columns: Any) -> list[float]:
    """A reward in TRL's form."""
    return [float(len(text)) for text in completions]


def wrote(*texts: str) -> list[Sample]:
    return [
        Sample(Prompt("q", columns={"answer": "a"}), 0, i, text=text, tokens=[1] * 4) for i, text in enumerate(texts)
    ]


def built(**settings: Any) -> NamedReward:
    (reward,) = build_rewards([RewardConfig.model_validate(settings)])
    return reward


def numbers(reward: NamedReward, samples: Sequence[Sample]) -> list[float]:
    return [float(value or 0) for value in reward.function(samples)]


def test_a_configuration_names_the_reward_within():
    samples = wrote("<answer>a</answer>", "a", "<answer>a</answer>")
    tagged = built(name="diversity_adjusted", of={"name": "exact_match", "extract": "tag"})
    assert numbers(tagged, samples) == [0.5, 0, 0.5]  # twice the same text
    assert numbers(built(name="conciseness", of="exact_match"), samples) == [0, 1, 0]
    within = built(name="noisy_verifier", of={"name": "conciseness", "of": "exact_match"}, false_negative=0.5)
    assert numbers(within, samples) == [0, 2, 0]


def test_a_configuration_names_custom_functions():
    samples = wrote("aaaa", "aa", "a")
    assert numbers(built(name="pairwise_win_rate", judge=f"{HERE}:longer"), samples) == [1, 0.5, 0]
    closer = built(name="pairwise_win_rate", judge={"name": f"{HERE}:Closer", "to": 2})
    assert numbers(closer, samples) == [0, 1, 0.5]
    assert numbers(built(name="pairwise_win_rate", of=f"{HERE}:counted"), samples) == [1, 0.5, 0]
    scores = score(samples, [built(name="tournament", of=f"{HERE}:counted", label="t")])
    assert scores.value_BR[:, 0].tolist() == [1, 0.5, 0]


def test_invalid_inner_rewards_raise_with_their_setting():
    with pytest.raises(ConfigError, match="unknown name 'exact_mach' among rewards; did you mean exact_match"):
        built(name="unlikeliness", of="exact_mach")
    with pytest.raises(ConfigError, match=r"reward exact_match: .*'extrakt'"):
        built(name="unlikeliness", of={"name": "exact_match", "extrakt": "tag"})
    with pytest.raises(ConfigError, match="of: an inner reward has no weight, gate or clip; leave out weight"):
        built(name="unlikeliness", of={"name": "exact_match", "weight": 2})
    with pytest.raises(ConfigError, match=r"reward unlikeliness: .*'of'"):
        built(name="unlikeliness")
