"""Names to "module:attribute", imported on use; packages of others join through entry points."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from pydantic import ValidationError

from mmgrpo.config.peers import peer_reward_suggestion
from mmgrpo.environment import SupportsOptionalRewards
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.policy import SupportsWindows
from mmgrpo.system.entry_points import entry_point_targets
from mmgrpo.system.site_pages import page_url
from mmgrpo.system.targets import import_attribute, import_python_target, is_python_target

POLICIES: Mapping[str, str] = {
    "denoising": "mmgrpo.policies.diffusion:DenoisingPolicy",
    "language": "mmgrpo.policies.language:LanguagePolicy",
    "masked": "mmgrpo.policies.masked:MaskedPolicy",
    "image_tokens": "mmgrpo.policies.image_tokens:ImageTokensPolicy",
    "unified": "mmgrpo.policies.unified:UnifiedPolicy",
}

SETTINGS: Mapping[str, str] = {
    "denoising": "mmgrpo.policies.diffusion.settings:DenoisingSettings",
    "language": "mmgrpo.policies.language.settings:LanguageSettings",
    "masked": "mmgrpo.policies.masked.settings:MaskedSettings",
    "image_tokens": "mmgrpo.policies.image_tokens.settings:ImageTokensSettings",
    "unified": "mmgrpo.policies.unified.settings:UnifiedSettings",
}
"""Settings of mmgrpo's policies, which can be imported without the libraries of the policies. A package of others may
name its settings in the group ``mmgrpo.settings``; else they are the ``settings_type`` of the policy."""

REWARDS: Mapping[str, str] = {
    "digit_verifier": "mmgrpo.examples.digits:DigitVerifier",
    "held_out_judge": "mmgrpo.examples.digits:HeldOutJudge",
    "edit_verifier": "mmgrpo.examples.edits:EditVerifier",
    "held_out_edit_judge": "mmgrpo.examples.edits:HeldOutEditJudge",
    "moving_digit_verifier": "mmgrpo.examples.moving_digits:MovingDigitVerifier",
    "moving_digit_judge": "mmgrpo.examples.moving_digits:MovingDigitJudge",
    "scene_verifier": "mmgrpo.examples.shapes:SceneVerifier",
    "digit_recall": "mmgrpo.examples.digits:Recall",
    "digit_precision": "mmgrpo.examples.digits:Precision",
    "digit_spread": "mmgrpo.examples.digits:StrokeSpread",
    "jpeg_size": "mmgrpo.rewards.images.pixels:JpegSize",
    "brightness": "mmgrpo.rewards.images.pixels:Brightness",
    "exact_match": "mmgrpo.rewards.text.answers:ExactMatch",
    "multiple_choice": "mmgrpo.rewards.text.choices:MultipleChoice",
    "yes_no": "mmgrpo.rewards.text.answers:YesNo",
    "classification": "mmgrpo.rewards.text.answers:Classification",
    "label_set": "mmgrpo.rewards.text.answers:LabelSet",
    "edit_distance": "mmgrpo.rewards.text.answers:EditDistance",
    "text_similarity": "mmgrpo.rewards.text.text_similarity:TextSimilarity",
    "caption_score": "mmgrpo.rewards.text.captions:CaptionScore",
    "number": "mmgrpo.rewards.text.quantities:Number",
    "mean_relative_accuracy": "mmgrpo.rewards.text.quantities:MeanRelativeAccuracy",
    "count": "mmgrpo.rewards.text.quantities:CountMatch",
    "first_error": "mmgrpo.rewards.text.quantities:FirstError",
    "chart_answer": "mmgrpo.rewards.text.chart_answers:ChartAnswer",
    "math_verify": "mmgrpo.rewards.text.mathematics:MathVerify",
    "math_form": "mmgrpo.rewards.text.mathematics:MathForm",
    "number_list": "mmgrpo.rewards.text.number_lists:NumberList",
    "countdown": "mmgrpo.rewards.text.countdown:Countdown",
    "ordering": "mmgrpo.rewards.text.sequences:Ordering",
    "coverage": "mmgrpo.rewards.text.coverage:Coverage",
    "brier": "mmgrpo.rewards.text.forecasts:Brier",
    "table_similarity": "mmgrpo.rewards.text.tables:TableSimilarity",
    "field_match": "mmgrpo.rewards.text.records:FieldMatch",
    "record_similarity": "mmgrpo.rewards.text.records:RecordSimilarity",
    "tool_calls": "mmgrpo.rewards.text.tool_calls:ToolCalls",
    "call_success": "mmgrpo.rewards.text.executed_calls:CallSuccess",
    "required_calls": "mmgrpo.rewards.text.executed_calls:RequiredCalls",
    "value_match": "mmgrpo.rewards.text.value_match:ValueMatch",
    "code_tests": "mmgrpo.rewards.code.programs:CodeTests",
    "run_time": "mmgrpo.rewards.code.programs:RunTime",
    "reasoning_gym": "mmgrpo.rewards.code.procedural_tasks:ReasoningGym",
    "sql_execution": "mmgrpo.rewards.code.queries:SqlExecution",
    "command": "mmgrpo.rewards.code.shell_commands:Command",
    "rendered": "mmgrpo.rewards.code.rendered_images:Rendered",
    "box_iou": "mmgrpo.rewards.grounding.localization:BoxIou",
    "detection": "mmgrpo.rewards.grounding.localization:Detection",
    "average_precision": "mmgrpo.rewards.grounding.precision:AveragePrecision",
    "point_in_box": "mmgrpo.rewards.grounding.localization:PointInBox",
    "mask_iou": "mmgrpo.rewards.grounding.masks:MaskIou",
    "gui_action": "mmgrpo.rewards.grounding.gui_action:GuiAction",
    "temporal_iou": "mmgrpo.rewards.grounding.localization:TemporalIou",
    "tracking": "mmgrpo.rewards.grounding.tracks:Tracking",
    "trajectory": "mmgrpo.rewards.grounding.trajectories:Trajectory",
    "format": "mmgrpo.rewards.text.structure:Format",
    "turn_format": "mmgrpo.rewards.text.turn_format:TurnFormat",
    "citations": "mmgrpo.rewards.text.citations:Citations",
    "json_schema": "mmgrpo.rewards.text.structure:JsonSchema",
    "overlong": "mmgrpo.rewards.text.lengths:Overlong",
    "repetition": "mmgrpo.rewards.text.lengths:Repetition",
    "length_peak": "mmgrpo.rewards.text.lengths:LengthPeak",
    "cosine_length": "mmgrpo.rewards.text.lengths:CosineLength",
    "stated_length": "mmgrpo.rewards.text.lengths:StatedLength",
    "clip_score": "mmgrpo.rewards.images.clip_scores:ClipScore",
    "pick_score": "mmgrpo.rewards.images.clip_scores:PickScore",
    "hps_v2": "mmgrpo.rewards.images.clip_scores:HpsV2",
    "aesthetic": "mmgrpo.rewards.images.clip_scores:Aesthetic",
    "pairwise_win_rate": "mmgrpo.rewards.groups.pairs:PairwiseWinRate",
    "tournament": "mmgrpo.rewards.groups.pairs:Tournament",
    "majority_vote": "mmgrpo.rewards.groups.votes:MajorityVote",
    "semantic_clusters": "mmgrpo.rewards.groups.votes:SemanticClusters",
    "diversity_adjusted": "mmgrpo.rewards.groups.diversity:DiversityAdjusted",
    "unlikeliness": "mmgrpo.rewards.groups.likelihoods:Unlikeliness",
    "environment_return": "mmgrpo.rewards.text.environment_return:EnvironmentReturn",
    "self_certainty": "mmgrpo.rewards.groups.likelihoods:SelfCertainty",
    "curiosity": "mmgrpo.rewards.groups.likelihoods:Curiosity",
    "on_part": "mmgrpo.rewards.groups.text_parts:OnPart",
    "attempts": "mmgrpo.rewards.groups.text_parts:Attempts",
    "likelihood_consistency": "mmgrpo.rewards.groups.likelihoods:LikelihoodConsistency",
    "noisy_verifier": "mmgrpo.rewards.groups.verifiers:NoisyVerifier",
    "partial_credit": "mmgrpo.rewards.groups.verifiers:PartialCredit",
    "conciseness": "mmgrpo.rewards.groups.verifiers:Conciseness",
    "rarity": "mmgrpo.rewards.groups.rarity:Rarity",
    "unique_formulas": "mmgrpo.rewards.groups.rarity:UniqueFormulas",
    "explorability": "mmgrpo.rewards.groups.explorability:Explorability",
    "across_prompt_templates": "mmgrpo.rewards.groups.substitute_references:AcrossPromptTemplates",
    "over_reference": "mmgrpo.rewards.groups.substitute_references:OverReference",
    "where_useful": "mmgrpo.rewards.groups.usefulness:WhereUseful",
    "of_prompt_template": "mmgrpo.rewards.groups.sample_chains:OfPromptTemplate",
    "of_later": "mmgrpo.rewards.groups.sample_chains:OfLater",
    "of_task": "mmgrpo.rewards.groups.of_task:OfTask",
    "at_end": "mmgrpo.rewards.groups.sample_chains:AtEnd",
    "tagged": "mmgrpo.rewards.text.tagged:Tagged",
    "remote": "mmgrpo.rewards.judges.remote_reward:RemoteReward",
    "image_reward": "mmgrpo.rewards.images.image_reward:ImageReward",
    "color": "mmgrpo.rewards.images.textures:Color",
    "sharpness": "mmgrpo.rewards.images.textures:Sharpness",
    "grid_artifacts": "mmgrpo.rewards.images.textures:GridArtifacts",
    "image_similarity": "mmgrpo.rewards.images.similarity:ImageSimilarity",
    "edit_consistency": "mmgrpo.rewards.images.similarity:EditConsistency",
    "edit_direction": "mmgrpo.rewards.images.similarity:EditDirection",
    "motion": "mmgrpo.rewards.video.motion:Motion",
    "temporal_consistency": "mmgrpo.rewards.video.motion:TemporalConsistency",
    "frame_mean": "mmgrpo.rewards.video.motion:FrameMean",
    "frame_evidence": "mmgrpo.rewards.video.frame_evidence:FrameEvidence",
    "video_align": "mmgrpo.rewards.video.video_align:VideoAlign",
    "clap_score": "mmgrpo.rewards.audio.clap_scores:ClapScore",
    "word_error": "mmgrpo.rewards.audio.speech:WordError",
    "word_error_rate": "mmgrpo.rewards.text.transcripts:WordErrorRate",
    "loudness": "mmgrpo.rewards.audio.levels:Loudness",
    "clipping": "mmgrpo.rewards.audio.levels:Clipping",
    "sounding": "mmgrpo.rewards.audio.levels:Sounding",
    "sound_length": "mmgrpo.rewards.audio.levels:SoundLength",
    "vlm_judge": "mmgrpo.rewards.judges.vlm_judge:VlmJudge",
    "reward_model": "mmgrpo.rewards.judges.scalar:RewardModel",
    "step_reward_model": "mmgrpo.rewards.judges.scalar:StepRewardModel",
    "solver": "mmgrpo.rewards.judges.solvers:Solver",
    "tool_choice": "mmgrpo.rewards.judges.tool_choice:ToolChoice",
    "submitted_evidence": "mmgrpo.rewards.judges.submitted_evidence:SubmittedEvidence",
    "text_judge": "mmgrpo.rewards.judges.text_judge:TextJudge",
    "call_judge": "mmgrpo.rewards.judges.call_judge:CallJudge",
    "prompt_likelihood": "mmgrpo.rewards.judges.vlm_judge:PromptLikelihood",
    "api_judge": "mmgrpo.rewards.judges.endpoints:ApiJudge",
    "ocr_accuracy": "mmgrpo.rewards.images.ocr:OcrAccuracy",
    "compositional": "mmgrpo.rewards.images.compositional:Compositional",
}

EXAMPLES: Mapping[str, str] = {
    "rows": "mmgrpo.training.auxiliary:answered_rows",
    "mislabeled_digits": "mmgrpo.examples.digits:mislabeled_examples",
    "drawn_scenes": "mmgrpo.examples.shapes:drawn_scenes",
    "misinstructed_edits": "mmgrpo.examples.edits:misinstructed_edits",
    "mislabeled_moving_digits": "mmgrpo.examples.moving_digits:mislabeled_moving_digits",
    "misread_digits": "mmgrpo.examples.digits:misread_digits",
    "misheard_keys": "mmgrpo.examples.keypad:misheard_keys",
    "careless_sums": "mmgrpo.examples.arithmetic:careless_sums",
}

OUTLINES: Mapping[str, str] = {
    "denoising": "mmgrpo.policies.diffusion.denoising_outline:outline_of",
    "language": "mmgrpo.policies.language.language_outline:language_outline",
}
"""Functions that outline a policy without its weights, for policies that have one."""

ENVIRONMENTS: Mapping[str, str] = {
    "tools": "mmgrpo.tools:ToolEnvironment",
    "tool_object": "mmgrpo.tools:ToolObjectEnvironment",
    "python": "mmgrpo.environments.python:PythonEnvironment",
    "image_tools": "mmgrpo.environments.image_tools:ImageToolsEnvironment",
    "video_tools": "mmgrpo.environments.video_tools:VideoToolsEnvironment",
    "audio_tools": "mmgrpo.environments.audio_tools:AudioToolsEnvironment",
    "search": "mmgrpo.environments.search:SearchEnvironment",
    "sql": "mmgrpo.environments.sql:SqlEnvironment",
    "mcp": "mmgrpo.environments.mcp_tools:McpEnvironment",
    "text_game": "mmgrpo.environments.text_games:TextGameEnvironment",
    "bandit": "mmgrpo.environments.bandits:BanditEnvironment",
    "gymnasium": "mmgrpo.environments.gymnasium_games:GymnasiumEnvironment",
    "openenv": "mmgrpo.environments.openenv_client:OpenEnvEnvironment",
    "verifiers": "mmgrpo.environments.verifiers_tasks:VerifiersEnvironment",
    "miniwob": "mmgrpo.environments.miniwob_pages:MiniwobEnvironment",
    "recorded_screens": "mmgrpo.environments.recorded_screens:RecordedScreensEnvironment",
    "simulated": "mmgrpo.environments.simulated:SimulatedEnvironment",
    "combined": "mmgrpo.environments.combined:CombinedEnvironment",
}

ENGINES: Mapping[str, str] = {"vllm": "mmgrpo.policies.engines.vllm:VllmEngine"}
"""Inference engines, by the name that ``rollout.engine`` uses; called with their settings."""

HOOKS: Mapping[str, str] = {
    "slow_fast": "mmgrpo.training.update_hooks:SlowFast",
    "mask": "mmgrpo.training.update_hooks:Mask",
}
"""Hooks around each optimizer step, by the name that ``update.hooks`` uses; called with the trained parameters."""

LIVE = "live:"
"""Prefix of the names of Python objects that are arguments of a Trainer."""

live_environments: dict[str, Any] = {}
"""Functions that make the environments of this process's trainers, by name."""

MAX_LISTED = 60
"""Known names that one message lists."""

_BUILT_IN = {
    "policies": POLICIES,
    "settings": SETTINGS,
    "rewards": REWARDS,
    "examples": EXAMPLES,
    "environments": ENVIRONMENTS,
    "hooks": HOOKS,
    "engines": ENGINES,
}


def names(kind: str) -> dict[str, str]:
    """All known names of a kind (one of ``resolve``'s) with where each lives; ours come first."""
    return {**entry_point_targets(f"mmgrpo.{kind}"), **_BUILT_IN[kind]}


def resolve(kind: str, name: str) -> Any:
    """The object registered under a name; ``python:module:attribute`` is any importable object.

    Args:
        kind: policies, rewards, examples, environments, hooks or engines.
        name: a registered name.

    Returns:
        The object itself, imported now.

    Raises:
        UnknownNameError: no such name; the nearest are listed.
        ConfigError: there is nothing at ``python:module:attribute``.
        MissingPackageError: its module needs a package that is not installed.
    """
    if is_python_target(name):
        return import_python_target(name)
    if kind == "environments" and name.startswith(LIVE):
        if name not in live_environments:
            raise ConfigError(
                f"the environment {name.removeprefix(LIVE)} was an argument of mmgrpo.Trainer: pass tools or "
                "environment_factory again, or set rollout.environment to python:module:attribute"
            )
        return live_environments[name]
    targets = names(kind)
    if name not in targets:
        raise unknown_name(kind, name)
    return import_attribute(targets[name])


def unknown_name(kind: str, name: str) -> UnknownNameError:
    """The error about a name that is not registered.

    Args:
        kind: one of ``resolve``'s.
        name: the name.

    Returns:
        The error; it names the reward for one of another library, else the nearest names.
    """
    sentence = peer_reward_suggestion(name) if kind == "rewards" else None
    fix = f"{suggestion(name, names(kind))}{unregistered(name)}" if sentence is None else f"; {sentence}"
    return UnknownNameError(f"unknown name {name!r} among {kind}{fix}")


def may_reward_turns(environment: str, settings: Mapping[str, Any]) -> bool:
    """Whether the turns of an environment may have rewards.

    Args:
        environment: its name.
        settings: its settings.

    Returns:
        True for a function that makes one.

    Raises:
        UnknownNameError: no such name.
        ConfigError: there is nothing at ``python:module:attribute``.
        MissingPackageError: its module needs a package that is not installed.
    """
    kind = resolve("environments", environment)
    if isinstance(kind, type) and issubclass(kind, SupportsOptionalRewards):
        return kind.may_reward(settings)
    return getattr(kind, "gives_rewards", True)


@final
class Registered(Mapping[str, Any]):
    """The objects of one kind (one of ``resolve``'s) by name, each imported when it is looked up."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return import_attribute(names(self._kind)[name])

    def __contains__(self, name: object) -> bool:  # imports nothing
        return name in names(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(names(self._kind))

    def __len__(self) -> int:
        return len(names(self._kind))


def settings_type(policy: str) -> Any:
    """The type of a policy's settings; None where it declares none. Registered ones are read without the policy."""
    targets = names("settings")
    if policy in targets:
        return import_attribute(targets[policy])
    return getattr(resolve("policies", policy), "settings_type", None)


def policy_class(policy: str) -> Any:
    """The class of a policy that a YAML file names.

    Raises ConfigError if it cannot be built from its settings: ``train`` and ``explain`` both ask here.
    """
    adapter = resolve("policies", policy)
    missing = [name for name in ("from_config", "settings_type") if getattr(adapter, name, None) is None]
    if missing:
        raise ConfigError(
            f"policy ({policy}) cannot be built from YAML: it has no {' and no '.join(missing)}; "
            f"add them ({page_url('learn/own-policy')}), or give mmgrpo.Trainer a live one"
        )
    return adapter


def outline_of(policy: str) -> Any:
    """The function that builds the outline of a policy from its settings; None if there is none."""
    return import_attribute(OUTLINES[policy]) if policy in OUTLINES else None


def is_scheduled(policy: str) -> bool:
    """Whether every sample of a policy takes the same, known number of decisions."""
    if policy in names("settings"):
        return getattr(settings_type(policy), "is_scheduled", False)
    adapter = resolve("policies", policy)
    return isinstance(adapter, type) and issubclass(adapter, SupportsWindows)


def decides(policy: str) -> str | None:
    """The decisions of a policy, from its settings type: tokens, denoising, masked; None if it does not state them."""
    return getattr(settings_type(policy), "decides", None)


def samples_tokens(policy: str, numbers: Mapping[str, Any], *, renoised: bool) -> bool:
    """Whether every decision of a policy is one token, as far as its settings say; True where they do not.

    Args:
        policy: its name.
        numbers: its settings; wrong ones are reported where the policy is built.
        renoised: whether its decisions are made of finished samples (``rollout.training_states: renoised``).

    Returns:
        Whether they are.
    """
    kind = settings_type(policy)
    if not hasattr(kind, "samples_tokens"):
        return decides(policy) != "denoising"
    try:
        return kind(**numbers).samples_tokens(renoised=renoised)
    except ValidationError:
        return True


def unregistered(name: str) -> str:
    """How a configuration names a function or class that is not registered, as the end of an error about its name."""
    return f" (one in your module: python:MODULE:{name})" if name.isidentifier() else ""


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """The tail of an error message: the nearest valid names, ignoring case; empty if none is near."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(valid_names, reverse=True)}
    near = difflib.get_close_matches(name[:200].lower(), by_lower, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(by_lower[candidate] for candidate in near)}?" if near else ""


def suggestion(name: str, valid_names: Iterable[str]) -> str:
    """The tail of an error message: the nearest valid names, ignoring case, or the first ``MAX_LISTED`` of all."""
    valid_names = sorted(valid_names)
    if near := did_you_mean(name, valid_names):
        return near
    more = f" and {len(valid_names) - MAX_LISTED} more" if len(valid_names) > MAX_LISTED else ""
    return f"; known are {', '.join(valid_names[:MAX_LISTED])}{more}"
