"""Arguments of `swift rlhf --rlhf_type grpo` of modelscope/ms-swift that TRL does not have, or that differ."""

from __future__ import annotations

from mmgrpo.config.peers import texts
from mmgrpo.config.peers.peer import Peer

ENGINE_WEIGHTS = "advantage.estimators: [{name: sampler_weight_truncated}], or a method in include, such as methods/mis"
SELF_DISTILLED = "methods/opsd or methods/sdft in include, a teacher that is the model with a solution in its prompt"
TEACHER = "methods/on-policy-distillation or methods/gkd in include, and its teacher in objective.views"
TRANSFERRED = "leave it out: `transfer` of rollout.engine sets how weights get to the server"

PEER = Peer(
    name="ms-swift",
    keys={
        "model": "policy.model",
        "adapters": "policy.adapter",
        "tuner_type": texts.ADAPTERS,
        "train_type": texts.ADAPTERS,
        "lora_rank": "policy.lora.rank",
        "lora_alpha": "policy.lora.alpha",
        "target_modules": "policy.lora.targets, by default all linear layers of the language model",
        "init_weights": "policy.lora.init",
        "freeze_vit": "policy.freeze_vision",
        "attn_impl": "policy.attention",
        "quant_bits": texts.FOUR_BIT,
        "quant_method": texts.FOUR_BIT,
        "system": "policy.system",
        "enable_thinking": "policy.template: {enable_thinking: false}",
        "max_pixels": "policy.processor: {max_pixels: N}",
        "dataset": "prompts.source",
        "val_dataset": "evaluation.prompts.source",
        "dataset_shuffle": "prompts.sampler: {name: in_order} for false",
        "reward_model": "rewards: [{name: reward_model, model: NAME}]",
        "external_plugins": texts.FUNCTION,
        "dynamic_sample": "rollout.strategy: {name: refill}",
        "max_resample_times": texts.REFILL,
        "overlong_filter": "objective.truncated: zero",
        "soft_max_length": texts.OVERLONG,
        "soft_cache_length": texts.OVERLONG,
        "cosine_max_len": "rewards: [{name: cosine_length}]",
        "repetition_n_grams": "rewards: [{name: repetition}]",
        "multi_turn_scheduler": "rollout.environment",
        "gym_env": "rollout.environment",
        "max_turns": "rollout.max_turns",
        "advantage_estimator": "advantage.scale, or a method in include: methods/rloo, methods/reinforce-plus-plus",
        "importance_sampling_level": "objective.ratio_level: token, sequence or sequence_token",
        "kl_in_reward": "advantage.kl.beta",
        "tau_pos": "objective.surrogate: {name: sapo, positive_temperature: NUMBER}",
        "tau_neg": "objective.surrogate: {name: sapo, negative_temperature: NUMBER}",
        "async_generate": "rollout.engine: {name: vllm, url: ADDRESS, steps_ahead: 1}",
        "sleep_level": "rollout.engine: {name: vllm, python: PYTHON, sleep: true} for level 1",
        "rollout_importance_sampling_mode": ENGINE_WEIGHTS,
        "rollout_importance_sampling_threshold": (
            "advantage.estimators: [{name: sampler_weight_truncated, cap: NUMBER}]"
        ),
        "off_policy_sequence_mask_delta": "objective.selections: [{name: near_policy, limit: NUMBER}]",
    },
    replacements={
        "rlhf_type": "leave it out: a run trains with GRPO, and a method in include names another loss",
        "model_type": "leave it out: the class of the model is that of its config.json",
        "template": "leave it out: the chat template is that of the tokenizer",
        "columns": "a reward's setting `column`, for example {name: exact_match, column: solution}",
        "split_dataset_ratio": "evaluation.prompts.source, another file",
        "truncation_strategy": "prompts.on_error: skip",
        "load_from_cache_file": "leave it out: rows are read when the run starts",
        "lazy_tokenize": "leave it out: prompts are tokenized when they are sampled",
        "use_hf": "leave it out: prompts.source and policy.model are names of the Hugging Face hub, or paths",
        "offload_optimizer": (
            "rollout.engine on another GPU, or update.optimizer: {name: adamw_8bit, paged: true}, whose state moves to "
            "the host if memory runs out"
        ),
        "offload_model": (
            "rollout.engine on another GPU, or policy.offload: true for a frozen base under LoRA without an engine"
        ),
        "move_model_batches": TRANSFERRED,
        "enable_flattened_weight_sync": TRANSFERRED,
        "vllm_server_group_port": TRANSFERRED,
        "stop_words": (
            "further ids as eos_token_id in the generation_config.json of the model; a completion ends at each of them"
        ),
        "completion_length_limit_scope": (
            "leave it out for total: policy.max_new_tokens counts all turns of a row; there is no limit of a turn"
        ),
        "num_infer_workers": "leave it out: rollout.engine names one vLLM server, and `options` its options",
        "dataset_num_proc": "leave it out: prompts are tokenized when they are sampled",
        "sequence_parallel_size": (
            "leave it out: sequences of language models are not split; runtime.context_parallel is for denoisers"
        ),
        "merge_lora": "`mmgrpo export RUN --merged`",
        "reward_model_plugin": texts.FUNCTION,
        "use_gym_env": "leave it out: rewards of an environment count if it has any",
        "log_rollout_offpolicy_metrics": "leave it out: rollout/engine_mismatch is a metric of each step",
        "advantage_reweight": SELF_DISTILLED,
        "sdar_loss_coef": SELF_DISTILLED,
        "teacher_model": TEACHER,
        "teacher_kl_coef": TEACHER,
        "vllm_max_model_len": texts.SERVER,
        "vllm_enforce_eager": texts.SERVER,
        "vllm_limit_mm_per_prompt": texts.SERVER,
        "vllm_enable_prefix_caching": texts.SERVER,
        "vllm_enable_lora": texts.SERVER,
        "log_entropy": "leave it out: the entropy is a metric of each step",
    },
    rewards={
        "accuracy": "{name: math_verify, column: solution}",
        "math": "{name: math_verify, column: solution}",
        "format": "{name: format}",
        "react_format": "{name: turn_format}",
        "cosine": "{name: cosine_length, max_length: N}",
        "soft_overlong": "{name: overlong, max_length: N, margin: N}",
        "toolbench": "{name: tool_calls}",
    },
)
