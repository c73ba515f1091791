"""Rewards of methods, added to those of the run: a run's ``rewards:`` never replaces them, nor they the run's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgrpo.config.methods import MethodConfig
from mmgrpo.config.rewards import RewardConfig, is_verifier, no_verifier
from mmgrpo.errors import ConfigError

VERIFIERS = "verifiers"
"""In a reward of a method: each verifier of the run."""

EXTRACT = "extract"
"""The setting that extracts the answer from a text; its value ``verifiers`` means that of the verifier."""

COUNTING = ("weight", "gate", "clip", "schedule")
"""How a method's reward counts, and a reward of the run that replaces it."""

BOXED = {"math_verify": "boxed"}
"""Verifiers that read the answer from a part of the text without a setting for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodReward:
    """A reward of a method.

    Attributes:
        method: its name.
        reward: as the method's file states it.
        substitutes: whether it counts in place of the run's verifiers.
    """

    method: str
    reward: RewardConfig
    substitutes: bool

    @property
    def wraps(self) -> bool:
        """Whether a verifier of the run is within it, or is itself under another label or weight."""
        return self.reward.name == VERIFIERS or _is_mentioned(self.reward.settings)


def with_method_rewards(rewards: Sequence[RewardConfig], methods: Sequence[MethodConfig]) -> tuple[RewardConfig, ...]:
    """The rewards of a run with those that its methods add.

    A run without rewards has the ``fallback`` of the last method that has one. Then, of each method:

    - ``substitutes`` come after the first verifier. A verifier that they are computed of is left out, unless a gate
      reads it; one that they are not computed of is reported at weight 0.
    - ``added`` come last.
    - A reward computed of ``verifiers`` is added once for each, times the verifier's weight, with its gate, schedule,
      time limit and, of substitutes, clip.
    - A reward of the run with the name and label of a method's overrides its settings, and has those of the method that
      it does not state. One with the label and ``from_method:`` replaces it, and counts as the method's does in all
      that it does not state. So the result is a fixed point.

    Args:
        rewards: the rewards that the run states.
        methods: of the run, the lowest first.

    Returns:
        The rewards that the run is trained on.

    Raises:
        ConfigError: a method's reward needs a verifier and there is none, or takes one and there are several; or the
            run has another reward of its label.
    """
    of_methods = [_overridden(entry, rewards) for entry in _of_methods(methods)]
    rewards = [reward for reward in rewards if not any(_overrides(reward, entry) for entry in of_methods)]
    is_fallback = not rewards
    if is_fallback:
        rewards = next((method.rewards.fallback for method in reversed(methods) if method.rewards.fallback), ())
    verifiers = [
        reward
        for reward in rewards
        if is_verifier(reward) and not any(_replaces(reward, entry) for entry in of_methods)
    ]
    rewards = [_replacing(reward, of_methods, verifiers) for reward in rewards]
    added = [entry for entry in of_methods if not any(_replaces(reward, entry) for reward in rewards)]
    substitutes = [reward for entry in added if entry.substitutes for reward in _expanded(entry, verifiers, rewards)]
    others = [reward for entry in added if not entry.substitutes for reward in _expanded(entry, verifiers, rewards)]
    if not any(entry.substitutes for entry in added):
        return _require_labels([*rewards, *others])
    if any(entry.reward.name == VERIFIERS for entry in added):
        reported: set[str] = set()
    elif is_fallback or any(entry.wraps for entry in added if entry.substitutes):
        reported = {reward.gate.reward for reward in (*rewards, *substitutes, *others) if reward.gate is not None}
    else:
        reported = {verifier.logged_name for verifier in verifiers}
    labels = {entry.reward.label for entry in added if entry.reward.name == VERIFIERS and entry.reward.label}
    renamed = {verifier.logged_name: label for verifier in verifiers for label in labels}
    placed = (*_with_substitutes(rewards, verifiers, substitutes, reported), *others)
    return _require_labels([_regated(reward, renamed) for reward in placed])


def _require_labels(rewards: Sequence[RewardConfig]) -> tuple[RewardConfig, ...]:
    """The rewards. Raises ConfigError where a reward of the run has the label of a method's without replacing it."""
    stated = {reward.logged_name: reward for reward in rewards if reward.from_method is None}
    for reward in rewards:
        if reward.from_method is not None and reward.logged_name in stated:
            raise ConfigError(
                f"rewards: '{reward.logged_name}' is the label of a reward {reward.name} that "
                f"methods/{reward.from_method} adds, and of the run's {stated[reward.logged_name].name}: give the "
                f"run's another label, or from_method: {reward.from_method} if it replaces the method's"
            )
    return tuple(rewards)


def _with_substitutes(
    rewards: Sequence[RewardConfig],
    verifiers: Sequence[RewardConfig],
    substitutes: Sequence[RewardConfig],
    reported: Collection[str],
) -> Iterator[RewardConfig]:
    """The rewards with the substitutes at the position of the first verifier; reported verifiers have weight 0."""
    for reward in rewards:
        if reward not in verifiers:
            yield reward
            continue
        if reward.logged_name in reported:
            yield reward.model_copy(update={"weight": 0.0, "verifier": True})
        if reward == verifiers[0]:
            yield from substitutes
    if not verifiers:
        yield from substitutes


def _of_methods(methods: Sequence[MethodConfig]) -> Iterator[MethodReward]:
    """The rewards of methods; the last one of each name and label."""
    unique: dict[tuple[str, str], MethodReward] = {}
    for method in methods:
        for substitutes, rewards in ((True, method.rewards.substitutes), (False, method.rewards.added)):
            for reward in rewards:
                entry = MethodReward(method=method.name, reward=reward, substitutes=substitutes)
                unique[reward.name, reward.logged_name] = entry
    yield from unique.values()


def _overrides(reward: RewardConfig, entry: MethodReward) -> bool:
    """Whether a reward of the run overrides settings of a method's reward."""
    same = (reward.name, reward.logged_name) == (entry.reward.name, entry.reward.logged_name)
    return same and reward.from_method is None


def _overridden(entry: MethodReward, rewards: Sequence[RewardConfig]) -> MethodReward:
    """A method's reward with the settings that the run overrides."""
    stated = next((reward for reward in rewards if _overrides(reward, entry)), None)
    if stated is None:
        return entry
    counting = {key: getattr(stated, key) for key in stated.model_fields_set & RewardConfig.model_fields.keys()}
    reward = entry.reward.model_copy(update={**counting, "from_method": None})
    settings = {**entry.reward.settings, **stated.settings}
    fields = {key: getattr(reward, key) for key in RewardConfig.model_fields}
    return replace(entry, reward=RewardConfig.model_validate({**fields, **settings}))


def _replaces(reward: RewardConfig, entry: MethodReward) -> bool:
    """Whether a reward of the run replaces a method's reward."""
    if entry.reward.name == VERIFIERS:
        return reward.from_method == entry.method and reward.label == (entry.reward.label or reward.label)
    is_labeled = reward.logged_name == entry.reward.logged_name or reward.logged_name.startswith(
        f"{entry.reward.logged_name}_of_"
    )
    return is_labeled and reward.from_method == entry.method


def _replacing(
    reward: RewardConfig, of_methods: Sequence[MethodReward], verifiers: Sequence[RewardConfig]
) -> RewardConfig:
    """A reward of the run; settings that it does not state are those of the method's reward that it replaces."""
    for entry in of_methods:
        if _replaces(reward, entry):
            unstated = [key for key in COUNTING if key not in reward.model_fields_set]
            counting = {key: value for key in unstated if (value := getattr(entry.reward, key)) is not None}
            if "gate" in counting and verifiers:
                counting["gate"] = _gate(entry.reward, verifiers[0])
            return reward.model_copy(update={**counting, "from_method": entry.method})
    return reward


def _expanded(
    entry: MethodReward, verifiers: Sequence[RewardConfig], rewards: Sequence[RewardConfig]
) -> list[RewardConfig]:
    """A method's reward with the verifiers of the run in it, once for each. Raises ConfigError without one."""
    reward, is_gated = entry.reward, entry.reward.gate is not None and entry.reward.gate.reward == VERIFIERS
    if not (entry.wraps or is_gated):
        return [_of_method(entry, reward.name, _with_extract(reward.settings, verifiers))]
    if not verifiers:
        lack = no_verifier([other.logged_name for other in rewards])
        raise ConfigError(f"methods/{entry.method} needs {lack}")
    if len(verifiers) > 1 and (reward.label is not None or is_gated):
        raise ConfigError(
            f"methods/{entry.method}: its reward {reward.logged_name} takes one verifier, and the run has "
            f"{', '.join(verifier.logged_name for verifier in verifiers)}: state verifier: false at all of these but "
            "one"
        )
    if not entry.wraps:
        return [_of_method(entry, reward.name, reward.settings, gate=_gate(reward, verifiers[0]))]
    if reward.name == VERIFIERS:
        return [
            verifier.model_copy(
                update={
                    "label": reward.label or verifier.label,
                    "weight": verifier.weight * reward.weight,
                    "from_method": entry.method,
                }
            )
            for verifier in verifiers
        ]
    return [_of_verifier(entry, verifier, single=len(verifiers) == 1) for verifier in verifiers]


def _of_verifier(entry: MethodReward, verifier: RewardConfig, *, single: bool) -> RewardConfig:
    reward = entry.reward
    if reward.schedule is not None and verifier.schedule is not None:
        raise ConfigError(
            f"methods/{entry.method}: the weight of {reward.logged_name} has a schedule, and that of "
            f"{verifier.logged_name}, which it is computed of, another: leave out the verifier's, or state the "
            "method's reward yourself"
        )
    within = {"name": verifier.name, **verifier.settings} if verifier.settings else verifier.name
    settings = {
        key: within if value == VERIFIERS and key != EXTRACT else value for key, value in reward.settings.items()
    }
    clip = verifier.clip if entry.substitutes and reward.clip is None else reward.clip
    return _of_method(
        entry,
        reward.name,
        _with_extract(settings, [verifier]),
        label=reward.label if single else f"{reward.logged_name}_of_{verifier.logged_name}",
        weight=reward.weight * verifier.weight,
        gate=_gate(reward, verifier) or verifier.gate,
        clip=clip,
        schedule=reward.schedule or verifier.schedule,
        timeout_s=verifier.timeout_s if reward.timeout_s is None else reward.timeout_s,
        concurrent=verifier.concurrent if reward.concurrent is None else reward.concurrent,
    )


def _of_method(entry: MethodReward, name: str, settings: Mapping[str, Any], **counting: Any) -> RewardConfig:
    """A method's reward with other settings and other weight, gate, clip or schedule."""
    stated = {key: getattr(entry.reward, key) for key in RewardConfig.model_fields}
    values = {**stated, **counting, "name": name, "from_method": entry.method, **settings}
    return RewardConfig.model_validate(values)


def _gate(reward: RewardConfig, verifier: RewardConfig) -> Any:
    if reward.gate is None or reward.gate.reward != VERIFIERS:
        return reward.gate
    return reward.gate.model_copy(update={"reward": verifier.logged_name})


def _with_extract(settings: Mapping[str, Any], verifiers: Sequence[RewardConfig]) -> dict[str, Any]:
    """Settings with the ``extract`` of the verifier; without one the default, the full text, applies."""
    if settings.get(EXTRACT) != VERIFIERS:
        return dict(settings)
    stated = (verifier.settings.get(EXTRACT, BOXED.get(verifier.name)) for verifier in verifiers)
    extraction = next((extract for extract in stated if extract is not None), None)
    return {key: value for key, value in settings.items() if key != EXTRACT} | (
        {} if extraction is None else {EXTRACT: extraction}
    )


def _is_mentioned(settings: Mapping[str, Any]) -> bool:
    return any(value == VERIFIERS for key, value in settings.items() if key != EXTRACT)


def _regated(reward: RewardConfig, renamed: Mapping[str, str]) -> RewardConfig:
    """A reward with its gate at the new label of a verifier that has another one."""
    if reward.gate is None or reward.gate.reward not in renamed:
        return reward
    return reward.model_copy(update={"gate": reward.gate.model_copy(update={"reward": renamed[reward.gate.reward]})})
