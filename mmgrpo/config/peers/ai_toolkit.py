"""ai-toolkit's configuration: config/examples of ostris/ai-toolkit, which trains on images and captions."""

from __future__ import annotations

from mmgrpo.config.peers import texts
from mmgrpo.config.peers.peer import Peer

PEER = Peer(
    name="ai-toolkit",
    keys={
        "config.name": "about.name",
        "process.training_folder": "output",
        "process.device": "runtime.device",
        "network": "policy.lora",
        "network.linear": "policy.lora.rank",
        "network.linear_alpha": "policy.lora.alpha",
        "save.save_every": "checkpoint.every",
        "save.max_step_saves_to_keep": "checkpoint.keep",
        "train.batch_size": "rollout.prompts_per_step, times rollout.group_size the samples of a step",
        "train.steps": "steps",
        "train.gradient_checkpointing": "policy.gradient_checkpointing",
        "train.optimizer": "update.optimizer: {name: adamw_8bit}",
        "train.lr": "update.optimizer.lr",
        "train.dtype": "policy.dtype",
        "train.ema_config.use_ema": "update.ema: {decay: 0.99}",
        "train.ema_config.ema_decay": "update.ema.decay",
        "model.name_or_path": "policy.model",
        "model.quantize": "policy.quantization_config: {load_in_4bit: true, bnb_4bit_quant_type: nf4}",
        "model.low_vram": "policy.offload: [text_encoder]",
        "sample.prompts": "evaluation.prompts.source",
        "sample.sample_every": "evaluation.every",
        "sample.width": "policy.call: {width: N}",
        "sample.height": "policy.call: {height: N}",
        "sample.seed": "evaluation.seed",
        "sample.guidance_scale": texts.GUIDANCE,
        "sample.sample_steps": texts.STEPS,
        "sample.neg": "policy.call: {negative_prompt: TEXT}",
    },
    replacements={
        "meta.name": "leave it out: about.name is the name of the run",
        "meta.version": "leave it out: exports have the versions of the libraries",
        "job": "leave it out: a file is one run",
        "process.type": "leave it out: a run trains by GRPO",
        "datasets.folder_path": (
            "prompts.source, the texts alone: GRPO trains on samples of the model, and rewards take the place of images"
        ),
        "datasets.caption_ext": "prompts.source, a text file with a prompt per line",
        "datasets.caption_dropout_rate": "leave it out: rollouts have their prompts",
        "datasets.cache_latents_to_disk": "leave it out: there are no training images",
        "datasets.resolution": "policy.call: {height: SIZE, width: SIZE}, or policy.buckets",
        "trigger_word": "write the word into the prompts",
        "train.noise_scheduler": "leave it out: the scheduler is that of the pipeline, policy.sampler its noise",
        "train.train_unet": "leave it out: the denoisers are trained, policy.denoisers names them",
        "train.train_text_encoder": "leave it out: text encoders are frozen",
        "train.gradient_accumulation_steps": "rollout.prompts_per_step, whose samples are accumulated",
        "model.is_flux": "leave it out: the class of the pipeline is that of its model_index.json",
        "save.push_to_hub": "`mmgrpo export RUN --push OWNER/NAME`",
        "save.dtype": "leave it out: `mmgrpo export RUN` writes the dtype of the run",
    },
    rewards={},
)
