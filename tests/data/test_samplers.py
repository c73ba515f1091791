from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm, prompt_sampler
from mmgrpo.config import Named, PromptsConfig, RunConfig
from mmgrpo.data.keys import prompt_keys
from mmgrpo.data.samplers import Pool, permutation
from mmgrpo.data.stream import PromptStream
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.prompt_weights import (
    adapted_probability,
    apportioned,
    keep_probability,
    offered,
    opened_share,
    variance,
)
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Memory
from mmgrpo.training.prompt_stats import PromptStats, update_prompt_stats
from mmgrpo.types import Prompt


def pool(size: int, **columns: Sequence[Any]) -> Pool:
    rows = [{name: values[i] for name, values in columns.items()} for i in range(size)]
    prompts = [Prompt(str(i), columns=row) for i, row in enumerate(rows)]
    return Pool(tuple(str(i) for i in range(size)), prompts)


def sampler(name: str, **numbers: Any):
    return prompt_sampler(Named.model_validate({"name": name, **numbers}))


def after(memory: Memory, step: int, rates: dict[str, float], learners: Sequence[Any] = ()) -> Memory:
    """The memory after a step at which each prompt had 100 samples of that success rate."""
    keys = [key for key in rates for _ in range(100)]
    reward_B = torch.cat([(torch.arange(100) < round(rate * 100)).float() for rate in rates.values()])
    return update_prompt_stats(
        memory, PromptStats(keys=keys, reward_B=reward_B, valid_B=reward_B >= 0, step=step), learners
    )


class TestNumbers:
    def test_weights(self) -> None:
        assert variance(torch.tensor([0.25, 0.5])).tolist() == [0.1875, 0.25]

    def test_greso(self) -> None:
        probability = keep_probability(0.5, torch.tensor([0, 1, 2, 3, 20]), floor=0.01)
        assert (1 - probability).tolist() == [0, 0.5, 0.75, 0.875, 0.99]
        numbers = {"target": 0.25 / 3, "pace": 0.01, "low": 0.05, "high": 0.95}
        assert adapted_probability(0.5, 0.25 / 3, **numbers) == 0.49
        assert adapted_probability(0.5, 0.08, **numbers) == 0.51
        assert adapted_probability(0.05, 1.0, **numbers) == 0.05
        assert adapted_probability(0.95, 0.0, **numbers) == 0.95

    def test_opened(self) -> None:
        assert [opened_share(step, start=0.2, steps=100) for step in (0, 50, 100, 300)] == pytest.approx(
            [0.2, 0.6, 1.0, 1.0], abs=1e-15
        )

    def test_integer_shares_are_exact(self) -> None:
        assert {tuple(apportioned([3, 1], 8, seed=seed)) for seed in range(200)} == {(6, 2)}
        assert {tuple(apportioned([0.1, 0.2, 0.7], 10, seed=seed)) for seed in range(200)} == {(1, 2, 7)}

    def test_other_shares_are_right_on_average(self) -> None:
        indices = [tuple(apportioned([0.9, 0.1], 2, seed=seed)) for seed in range(4000)]
        assert set(indices) == {(2, 0), (1, 1)}  # quotas 1.8 and 0.2
        assert indices.count((1, 1)) / 4000 == pytest.approx(0.2, abs=0.02)
        thirds = [apportioned([1, 1, 1], 8, seed=seed) for seed in range(3000)]
        assert {(sum(shares), min(shares), max(shares)) for shares in thirds} == {(8, 2, 3)}
        assert torch.tensor(thirds).double().mean(0).tolist() == pytest.approx([8 / 3] * 3, abs=0.03)


class TestSamplers:
    @pytest.mark.nightly
    def test_weighted_samples_by_weight_without_repeats(self) -> None:
        weighted = sampler("weighted", floor=0.0001)
        memory = after(Memory().declared(weighted.columns), 0, {"0": 1.0, "1": 0.25, "2": 0.5, "3": 0.5})
        counts: Counter[int] = Counter()
        for step in range(3000):
            indices = weighted.draw(memory, step, pool(4), 2, 7)
            assert len(set(indices)) == 2
            counts[indices[0]] += 1
        assert weighted.draw(memory, 5, pool(4), 2, 7) == weighted.draw(memory, 5, pool(4), 2, 7)
        # first draws go by the weights 0.0001, 0.1875, 0.25, 0.25 of 0.6876
        shares = [counts[i] / 3000 for i in range(4)]
        assert shares == pytest.approx([0, 0.2727, 0.3636, 0.3636], abs=0.03)

    @pytest.mark.nightly
    def test_weighted_by_a_column_with_something_added(self) -> None:
        weighted = sampler("weighted", formula="deviation", floor=0.0, added=0.05, column="value")
        memory = Memory().declared(weighted.columns)
        assert [column.name for column in weighted.columns] == ["value"]
        memory = memory.write("value", ["0", "1", "2"], torch.tensor([1.0, 0.8, 0.0], dtype=torch.float64))
        counts = Counter(weighted.draw(memory, step, pool(4), 1, 7)[0] for step in range(3000))
        # 0.05, 0.45, 0.05 and, of the prompt that was never sampled, sqrt(0.25) + 0.05 = 0.55
        shares = [counts[i] / 3000 for i in range(4)]
        assert shares == pytest.approx([0.05 / 1.1, 0.45 / 1.1, 0.05 / 1.1, 0.5], abs=0.03)

    def test_skip_settled_learns_its_probabilities(self) -> None:
        settled = sampler("skip_settled")
        memory = Memory().declared(settled.columns)
        learners = [settled.learn]
        # of four prompts one right (a quarter >= 8.3 %) and none wrong (0 < 16.7 %)
        memory = after(memory, 0, {"0": 1.0, "1": 0.5, "2": 0.5, "3": 0.5}, learners)
        assert memory.state("skip_settled") == {"easy": 0.49, "hard": 0.51}
        memory = after(memory, 1, {"0": 1.0, "1": 0.1, "2": 0.5, "3": 0.5}, learners)
        assert memory.state("skip_settled") == pytest.approx({"easy": 0.48, "hard": 0.50})
        assert memory.read("right_streak", ["0", "1"]).tolist() == [2, 0]
        assert memory.read("wrong_streak", ["0", "1"]).tolist() == [0, 1]

    @pytest.mark.nightly
    def test_skip_settled_skips_by_the_streak(self) -> None:
        settled = sampler("skip_settled")
        memory = Memory().declared(settled.columns)
        for step in range(3):
            memory = after(memory, step, {"0": 1.0, "1": 0.5, "2": 0.5, "3": 0.5})
        num_sampled = Counter(i for epoch in range(2000) for i in settled.draw(memory, 2 * epoch, pool(4), 2, 3))
        # "0" is kept with 0.5 ** 3; where it is, it is one of 4 that waited equally long, and two are sampled
        assert num_sampled[0] / 2000 == pytest.approx(0.125 / 2, abs=0.02)
        assert num_sampled[1] / 2000 == pytest.approx((2 - 0.125 / 2) / 3, abs=0.03)

    def test_drop_solved(self) -> None:
        drop = sampler("drop_solved", times=2)
        memory = Memory().declared(drop.columns)
        for step in range(2):
            memory = after(memory, step, {"0": 1.0, "1": 0.5, "2": 1.0 if step else 0.5})
        assert sorted(drop.draw(memory, 2, pool(4), 3, 0)) == [1, 2, 3]
        assert drop.draw(memory, 2, pool(4), 3, 0)[0] == 3  # it was never sampled
        for step in range(2):
            memory = after(memory, step, {str(i): 1.0 for i in range(4)})
        assert sorted(drop.draw(memory, 4, pool(4), 4, 0)) == [0, 1, 2, 3]

    def test_curriculum_opens(self) -> None:
        rising = sampler("curriculum", by="level", steps=8, start=0.25)
        memory = Memory().declared(rising.columns)
        levels = pool(8, level=[7, 6, 5, 4, 3, 2, 1, 0])
        assert sorted(rising.draw(memory, 0, levels, 2, 0)) == [6, 7]
        memory = after(memory, 0, {"6": 1.0, "7": 1.0})
        # at step 4 the share is 0.625: 5 of 8 are open, and the three that were never sampled come first
        assert sorted(rising.draw(memory, 4, levels, 3, 0)) == [3, 4, 5]
        assert set(rising.draw(memory, 99, levels, 8, 0)) == set(range(8))
        falling = sampler("curriculum", by="level", steps=8, start=0.25, descending=True)
        assert sorted(falling.draw(memory, 0, levels, 2, 0)) == [0, 1]
        with pytest.raises(DataError, match="column 'level' must be a number"):
            rising.draw(memory, 0, pool(2), 1, 0)

    def test_mixed(self) -> None:
        half = sampler("mixed", share=0.5, first={"name": "weighted", "floor": 1e-9}, second="shuffled")
        memory = after(Memory().declared(half.columns), 0, {str(i): float(i in (2, 5)) / 2 for i in range(8)})
        for step in range(20):
            indices = half.draw(memory, step, pool(8), 4, 0)
            assert set(indices[:2]) == {2, 5}
            assert len(set(indices)) == 4

    @pytest.mark.nightly
    def test_successes_share_by_a_bell(self) -> None:
        bell = sampler("by_successes", group=4, width=1.0)
        rates = {"0": 0.0, "1": 0.25, "2": 0.5, "3": 0.5, "4": 1.0}
        memory = after(Memory().declared(bell.columns), 0, rates)
        counts = Counter(bell.draw(memory, step, pool(6), 1, 7)[0] for step in range(3000))
        # of two successes 1, which two prompts share, of one exp(-1/2) = 0.6065307; all, none and never seen: nothing
        expected = [0, 0.6065307, 0.5, 0.5, 0, 0]
        assert [counts[i] / 3000 for i in range(6)] == pytest.approx([w / 1.6065307 for w in expected], abs=0.03)
        assert set(bell.draw(memory, 0, pool(6), 5, 7)[:3]) == {1, 2, 3}  # the others come where these are out

    @pytest.mark.nightly
    def test_the_posterior_of_a_success_rate(self) -> None:
        posterior = sampler("by_posterior", scale=4.0)
        memory = Memory().declared(posterior.columns)
        memory = memory.write("num_samples", ["0", "1"], torch.tensor([2, 6])).write(
            "reward_sum", ["0", "1"], torch.tensor([1.0, 0.0], dtype=torch.float64)
        )
        counts = Counter(posterior.draw(memory, step, pool(3), 1, 7)[0] for step in range(3000))
        # p 1/2, 1/8 and, never seen, 1/2: 4 * 0.5 / 2 = 1, 4 * 0.3307189 = 1.3228757 and 2; e of them
        weights = [2.7182818, 3.7542034, 7.3890561]
        assert [counts[i] / 3000 for i in range(3)] == pytest.approx([w / sum(weights) for w in weights], abs=0.03)

    def test_prompts_with_the_most_to_explore_are_first(self) -> None:
        """Of 8 prompts 2 a step, so that an epoch is 4 steps at first; at half of them it looks at 4, in 2 steps."""
        explorer = sampler("most_explorable", reward="new", visits=2, falls=0.5, least=0.4)
        memory, keys = Memory().declared(explorer.columns), [str(n) for n in range(8)]
        assert explorer.learn is not None
        counts: list[int] = []
        for step in range(4):
            indices = explorer.draw(memory, step, pool(8), 2, 0)
            counts += indices
            facts = PromptStats(
                keys=[str(n) for n in indices for _ in range(2)],
                reward_B=torch.zeros(4),
                valid_B=torch.ones(4).bool(),
                step=step,
                rewards={"new": torch.tensor([float(n) for n in indices for _ in range(2)], dtype=torch.float64)},
            )
            memory = update_prompt_stats(memory, facts, [explorer.learn])
        assert sorted(counts) == list(range(8))
        assert memory.read("new_0_ago", keys).tolist() == [2.0 * n for n in range(8)]
        first, second = (explorer.draw(memory, step, pool(8), 2, 0) for step in (4, 5))
        order = permutation(derive_seed(0, 1), 8)
        assert first == sorted(order[:4], reverse=True)[:2]
        assert second == sorted(order[4:], reverse=True)[:2]
        # a second visit at which prompt 7 came to 0: a mean of 7, below the 12 of prompt 6
        facts = PromptStats(
            keys=["7"],
            reward_B=torch.zeros(1),
            valid_B=torch.ones(1).bool(),
            step=4,
            rewards={"new": torch.zeros(1, dtype=torch.float64)},
        )
        memory = update_prompt_stats(memory, facts, [explorer.learn])
        assert [memory.read(f"new_{ago}_ago", ["7"]).item() for ago in range(2)] == [0.0, 14.0]
        # from the third epoch on 2 / 0.4 = 5 are looked at
        assert [offered(step, 8, 2, falls=0.5, least=0.4) for step in (3, 4, 5, 6, 7, 8)] == [
            (2, 0, 6), (4, 1, 0), (4, 1, 4), (5, 2, 0), (5, 2, 5), (5, 3, 0)
        ]  # fmt: skip
        with pytest.raises(ConfigError, match="goes by the reward 'new'"):
            update_prompt_stats(memory, replace(facts, rewards={}), [explorer.learn])

    def test_wrong_names_and_numbers(self) -> None:
        with pytest.raises(ConfigError, match="did you mean weighted"):
            sampler("weigthed")
        with pytest.raises(ConfigError, match="takes no 'floors'; did you mean floor"):
            sampler("weighted", floors=1)
        with pytest.raises(ConfigError, match="curriculum needs by, steps"):
            sampler("curriculum")
        with pytest.raises(ConfigError, match=r"prompts.sampler.first: unknown name 'x'"):
            sampler("mixed", share=0.5, first="x", second="shuffled")


class TestKeys:
    def test_by_id_or_by_content(self) -> None:
        rows = [Prompt("a", columns={"id": i}) for i in (7, 8)]
        assert prompt_keys(rows) == ("7", "8")
        key, same, other = prompt_keys([Prompt("a", columns={"x": 1}), Prompt("a", columns={"x": 1}), Prompt("a")])
        assert same == f"{key}.1"
        assert other != key
        assert prompt_keys([Prompt("a"), Prompt("b", columns={"id": 1})])[0] == other  # not every row has an id

    def test_order_of_rows_does_not_matter(self) -> None:
        rows = [Prompt("a", columns={"x": [1, {"y": 2.5}]}), Prompt("b", images=["folder/one.png"])]
        assert prompt_keys(rows[::-1]) == prompt_keys(rows)[::-1]
        columns: dict[Any, Any] = {1: "x", "y": {2}}
        other: dict[Any, Any] = {"y": {2}, 1: "x"}
        assert prompt_keys([Prompt("a", columns=columns)]) == prompt_keys([Prompt("a", columns=other)])
        assert prompt_keys([Prompt("b", images=["moved/one.png"])])[0] == prompt_keys(rows)[1]


class TestStream:
    def test_shuffled_is_the_stream_as_it_was(self) -> None:
        prompts = [Prompt(str(i)) for i in range(11)]
        plain = PromptStream(prompts, num_per_step=4, seed=3)
        named = PromptStream(prompts, num_per_step=4, seed=3, sampler=sampler("shuffled"))
        weighted = PromptStream(
            [Prompt(str(i), source="all") for i in range(11)], num_per_step=4, seed=3, weights={"all": 2.0}
        )
        for step in range(12):
            indices = [index for index, _ in plain.take(step)]
            assert [index for index, _ in named.take(step)] == indices
            assert [index for index, _ in weighted.take(step)] == indices
        assert [[index for index, _ in plain.take(step)] for step in range(2)] == [[2, 10, 5, 3], [1, 6, 0, 8]]

    def test_shares_of_sources(self) -> None:
        prompts = [Prompt(str(i), source="abc"[i % 3]) for i in range(30)]
        both = [prompt for prompt in prompts if prompt.source != "c"]
        stream = PromptStream(both, num_per_step=8, seed=0, weights={"a": 3, "b": 1})
        counts: Counter[str] = Counter()
        for step in range(10):
            taken = stream.take(step)
            assert Counter(prompt.source for _, prompt in taken) == {"a": 6, "b": 2}
            assert all(both[index] is prompt for index, prompt in taken)
            counts.update(prompt.text for _, prompt in taken)
        assert {text: num for text, num in counts.items() if int(text) % 3} == dict.fromkeys(
            [str(i) for i in range(1, 30, 3)], 2
        )  # ten prompts of b, two a step: each twice in ten steps

    def test_fractional_shares_walk_every_source_evenly(self) -> None:
        prompts = [Prompt(str(i), source="ab"[i % 2]) for i in range(12)]
        stream = PromptStream(prompts, num_per_step=3, seed=5, weights={"a": 1, "b": 1})
        taken = [stream.take(step) for step in range(40)]
        assert {len(batch) for batch in taken} == {3}
        counts = Counter(index for batch in taken for index, _ in batch)
        for part in (0, 1):
            of_part = [counts[i] for i in range(part, 12, 2)]
            assert max(of_part) - min(of_part) <= 1
        fresh = PromptStream(prompts, num_per_step=3, seed=5, weights={"a": 1, "b": 1})
        assert fresh.take(39) == taken[39]

    def test_prompts_of_no_source(self) -> None:
        with pytest.raises(DataError, match="no prompts of the source 'b'"):
            PromptStream([Prompt("x", source="a")], num_per_step=1, seed=0, weights={"a": 1, "b": 1})
        with pytest.raises(DataError, match="prompts of None belong to none of the sources a"):
            PromptStream([Prompt("x", source="a"), Prompt("y")], num_per_step=1, seed=0, weights={"a": 1})


class TestConfig:
    def test_sources_survive_the_run_folder(self) -> None:
        section = PromptsConfig.model_validate({"sources": [{"source": "a.txt", "limit": 3}, {"source": "b.txt"}]})
        assert PromptsConfig.model_validate(section.model_dump(mode="json")) == section

    def test_one_way(self) -> None:
        for wrong, message in (
            ({"source": "a.txt", "sources": [{"source": "b.txt"}]}, "name one source"),
            ({"sources": [{"source": "b.txt"}, {"source": "b.txt"}]}, "repeat"),
            ({"sources": [{"source": "b.txt"}], "limit": 3}, "move limit under sources"),
        ):
            with pytest.raises(ValueError, match=message):
                PromptsConfig.model_validate(wrong)


def test_missing_number_columns_raise_before_the_run() -> None:
    """Of every row, by the estimator that reads them."""
    config = RunConfig.model_validate(
        {
            "about": {"method": {"name": "mine", "title": "Mine"}},
            "advantage": {"scale": "raw", "estimators": [{"name": "column_baseline", "column": "worth"}]},
        }
    )
    rows = [Prompt("a", columns={"worth": 0.5}), Prompt("b", columns={"answer": "3", "worth": "much"})]
    assert len(Algorithm.of(config).prompt_stream(rows[:1]).keys) == 1
    with pytest.raises(DataError, match=r"column_baseline of mine reads a number .*row 1 has none .*are answer, worth"):
        Algorithm.of(config).prompt_stream(rows)
