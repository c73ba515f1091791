"""Tiny random checkpoints of audio models, in folders of the published layout."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from transformers import (
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapProcessor,
    GenerationConfig,
    RobertaTokenizer,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from tests.tiny import tokenizers
from tests.tiny.judges import redraw

RATE = 8000  # of the recognizers
LETTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", *string.ascii_uppercase)


def save_clap(folder: Path, seed: int = 0) -> Path:
    """CLAP, which hears a second of 16 kHz at a time; features 24 wide."""
    tokenizer = RobertaTokenizer(tokenizer_object=tokenizers.t5_tokenizer().backend_tokenizer, pad_token="<pad>")
    text = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "max_position_embeddings": 66, "projection_dim": 24, "pad_token_id": 1}
    audio = {"spec_size": 64, "num_mel_bins": 8, "window_size": 8, "patch_size": 4, "patch_stride": [4, 4]}
    audio |= {"patch_embeds_hidden_size": 8, "hidden_size": 16, "depths": [1, 1], "num_attention_heads": [1, 1]}
    audio |= {"num_hidden_layers": 2, "projection_dim": 24}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ClapModel(ClapConfig(text_config=text, audio_config=audio, projection_dim=24))
        redraw(model)
    model.save_pretrained(folder)
    extractor = ClapFeatureExtractor(
        truncation="rand_trunc",
        feature_size=8,
        sampling_rate=16000,
        hop_length=80,
        fft_window_size=256,
        max_length_s=1,
        frequency_max=8000,
    )
    ClapProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder


def save_ctc(folder: Path, seed: int = 0) -> Path:
    """Wav2Vec2 with a CTC head over capital letters."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({letter: n for n, letter in enumerate(LETTERS)}))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    config = Wav2Vec2Config(
        vocab_size=len(LETTERS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        conv_dim=[16, 16],
        conv_stride=[20, 8],
        conv_kernel=[20, 8],
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Wav2Vec2ForCTC(config)
        model.lm_head.weight.data.normal_(std=1.0)
    model.save_pretrained(folder)
    Wav2Vec2Processor(Wav2Vec2FeatureExtractor(sampling_rate=RATE), tokenizer).save_pretrained(folder)
    return folder


def save_whisper(folder: Path, seed: int = 0) -> Path:
    """Whisper, which hears two seconds and writes a few bytes."""
    pieces = {"<|endoftext|>": 0, "<|startoftranscript|>": 1}
    pieces |= {chr(288 + n) if n == 32 else chr(n): n for n in range(32, 127)}
    tokenizer = WhisperTokenizer(pieces, [], unk_token="<|endoftext|>")
    size = max(pieces.values()) + 1
    config = WhisperConfig(
        vocab_size=size,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=50,
        max_target_positions=32,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=1,
        decoder_start_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WhisperForConditionalGeneration(config)
        redraw(model)
    model.generation_config = GenerationConfig(
        max_length=12, eos_token_id=0, pad_token_id=0, decoder_start_token_id=1, suppress_tokens=list(range(1, 32))
    )
    model.save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=8, sampling_rate=RATE, hop_length=160, chunk_length=2)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder
