"""Recorded trajectories of screens: the policy acts step by step, and the expert's screens follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, final

from mmgrpo.data.image_loading import load_image_column
from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.targets import import_attribute
from mmgrpo.types import Prompt, Sample, Score

ACTION_REWARD = "mmgrpo.rewards.grounding.gui_action:GuiAction"
ACTION = "expert_action"
MATCH = {"column": ACTION, "coordinates": "original"}
UNUSED = ("column", "type_weight", "place_weight", "text_weight")
"""Settings of ``gui_action`` without a part in the match of an action."""

PARSED, SAME_TYPE, SAME = 0.1, 0.5, 1.0
"""Scores of an action of another type than the expert's, of its type, and of one that is the expert's."""

PATCH = "The right action is {action}."


@final
class RecordedScreensEnvironment(Environment):
    """A recorded trajectory that the policy goes through, with patches where it departs from the expert.

    A row has the columns ``screens``, one image per step, and ``actions``, the expert's action on each, in the forms of
    the reward ``gui_action``. The opening turn is the first screen. The reply to an action that matches the expert's is
    the next screen. The reply to another one is the expert's action with the next screen (a patch), up to
    ``max_patches`` times; then the conversation ends, as it does after the last step.

    The reward of a turn is ``format_weight`` for a thought in ``<think>``, and for the rest 1 if the action matches,
    0.5 if its type does, 0.1 if it is another action, and 0 if there is none, or several.

    Source: Lu et al. 2025 (UI-S1), arXiv:2509.11543; MobileAgent, UI-S1/verl/utils/reward_score/gui_traj.py and
    verl/utils/dataset/universal_multiround.py. Deviation: a patch follows the action of the policy, which stays in the
    conversation; ``gui_action`` compares the actions.
    """

    def __init__(
        self,
        max_patches: int | None = 1,
        format_weight: float = 0.1,
        match: Mapping[str, Any] | None = None,
    ) -> None:
        """Checks the settings.

        Args:
            max_patches: patches per conversation; None: no limit.
            format_weight: weight of the thought in the reward of a turn, from 0 to below 1.
            match: settings of ``gui_action`` but ``column`` and its weights, such as ``distance``; without
                ``coordinates``, positions are pixels of the screens.

        Raises:
            ConfigError: a setting is not allowed.
        """
        if (max_patches is not None and max_patches < 0) or not 0 <= format_weight < 1:
            raise ConfigError(
                "recorded_screens needs max_patches of at least 0 (or null) and 0 <= format_weight < 1, got "
                f"{max_patches} and {format_weight}"
            )
        unused = {name: value for name, value in (match or {}).items() if name in UNUSED}
        require_unset("recorded_screens.match", "each part of an action must match; remove it", **unused)
        try:
            self._reward = import_attribute(ACTION_REWARD)(**{**MATCH, **(match or {})})
        except TypeError as error:
            raise ConfigError(f"'match' of recorded_screens has the settings of gui_action: {error}") from error
        self._max_patches, self._format_weight = max_patches, format_weight
        self._num_patches = self._step = 0
        self._prompts: Sequence[Prompt] = ()

    def reset(self, prompt: Prompt) -> Turn:
        """The first screen.

        Raises: DataError if the row has no trajectory, or an action of it cannot be read.
        """
        screens, actions = load_image_column(prompt.columns, "screens"), prompt.columns.get("actions")
        if not screens or not isinstance(actions, list | tuple) or len(actions) != len(screens):
            raise DataError("the row needs 'screens' and 'actions', lists of one length: an image and an action a step")
        for number, action in enumerate(actions):
            if error := self._reward.reference_error(action):
                raise DataError(f"action {number} of the row: {error}")
        self._prompts = [
            Prompt(prompt.text, images=[screen], columns={**prompt.columns, ACTION: action})
            for screen, action in zip(screens, actions, strict=True)
        ]
        return self._screen("")

    def step(self, text: str) -> Turn:
        """The next screen, after a patch if the action is not the expert's."""
        before, _, after = text.partition("</think>")
        has_thought = bool(after and before.partition("<think>")[2].strip())
        score = self._action_score(after or text)
        reward = self._format_weight * has_thought + (1 - self._format_weight) * score
        action = self._prompts[self._step].columns[ACTION]
        is_patched = score < SAME
        self._num_patches += is_patched
        self._step += 1
        is_beyond = self._max_patches is not None and self._num_patches > self._max_patches
        if is_beyond or self._step == len(self._prompts):
            return Turn(reward=reward, done=True)
        written = action if isinstance(action, str) else json.dumps(action, ensure_ascii=False)
        return self._screen(PATCH.format(action=written) if is_patched else "", reward)

    def _screen(self, text: str, reward: float | None = None) -> Turn:
        return Turn(text=text, images=self._prompts[self._step].images, reward=reward, key=f"step {self._step}")

    def _action_score(self, text: str) -> float:
        (score,) = self._reward([Sample(self._prompts[self._step], group=0, member=0, text=text)])
        parts = score.explanation.get("parts") if isinstance(score, Score) else None
        if parts is None:
            return 0.0
        if not parts["type"]:
            return PARSED
        return SAME if all(part == 1 for part in parts.values()) else SAME_TYPE
