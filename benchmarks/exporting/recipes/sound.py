"""Speech and other sound, from `transformers` and as their papers define them."""

from __future__ import annotations

from typing import Any

from exporting.recipe import Module, Recipes, normal, tokens
from exporting.recipes.text import of_config

RECIPES = Recipes("sound")


def _whisper(scale: int) -> dict[str, Any]:
    return {
        "d_model": 16 * scale, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32 * scale, "decoder_ffn_dim": 32 * scale, "vocab_size": 100,
        "num_mel_bins": 16, "max_source_positions": 32 * scale, "max_target_positions": 64, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip


@RECIPES()
def whisper_encoder(scale: int) -> Module:
    made = of_config("WhisperConfig", "models.whisper.modeling_whisper.WhisperEncoder", **_whisper(scale))
    return Module(made, {"input_features": normal(1, 16, 64 * scale)}, {"input_features": {0: "batch"}})


@RECIPES()
def whisper_decoder(scale: int) -> Module:
    made = of_config("WhisperConfig", "models.whisper.modeling_whisper.WhisperDecoder", **_whisper(scale))
    inputs = {"input_ids": tokens(2, 5), "encoder_hidden_states": normal(2, 32 * scale, 16 * scale)}
    return Module(made, inputs, {"input_ids": {0: "batch", 1: "length"}, "encoder_hidden_states": {0: "batch"}})


_WAVE = {"conv_dim": (8, 8, 16), "conv_stride": (5, 4, 2), "conv_kernel": (10, 8, 3), "num_feat_extract_layers": 3,
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "num_hidden_layers": 1,
         "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 32}  # fmt: skip


def _wave(config: str, model: str, **settings: Any) -> Any:
    def make(scale: int) -> Module:
        made = of_config(config, model, hidden_size=16 * scale, **_WAVE, **settings)
        axes = {"input_values": {0: "batch", 1: "samples"}}
        return Module(made, {"input_values": normal(2, 800 * scale)}, axes)

    return make


RECIPES.add("wav2vec2", _wave("Wav2Vec2Config", "Wav2Vec2ForCTC"))
RECIPES.add("hubert", _wave("HubertConfig", "HubertModel"))
RECIPES.add("wavlm", _wave("WavLMConfig", "WavLMModel"))
RECIPES.add("sew", _wave("SEWConfig", "SEWModel", squeeze_factor=2))


@RECIPES()
def encodec(scale: int) -> Module:
    """The encoder and the decoder around the codebooks: strided convolutions and an LSTM."""
    import torch

    model = of_config("EncodecConfig", "EncodecModel", num_filters=4 * scale, hidden_size=16, upsampling_ratios=[4, 2],
                      codebook_size=16, num_lstm_layers=1)  # fmt: skip

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = model.encoder, model.decoder

        def forward(self, x: Any) -> Any:
            return self.decoder(self.encoder(x))

    return Module(Both(), {"x": normal(1, 1, 320 * scale)})


@RECIPES()
def audio_spectrogram_transformer(scale: int) -> Module:
    made = of_config("ASTConfig", "ASTForAudioClassification", hidden_size=16 * scale, num_hidden_layers=1,
                     num_attention_heads=2, intermediate_size=32, num_mel_bins=32, max_length=64, patch_size=8,
                     frequency_stride=8, time_stride=8)  # fmt: skip
    return Module(made, {"input_values": normal(2, 64, 32)}, {"input_values": {0: "batch"}})


@RECIPES()
def conformer(scale: int) -> Module:
    """Half-step feed-forward layers around attention and a gated depthwise convolution."""
    import torch

    w = 16 * scale

    def feed() -> Any:
        layers = (torch.nn.LayerNorm(w), torch.nn.Linear(w, 2 * w), torch.nn.SiLU(), torch.nn.Linear(2 * w, w))
        return torch.nn.Sequential(*layers)

    class Conformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = feed(), feed()
            self.norm = torch.nn.LayerNorm(w)
            self.attention = torch.nn.MultiheadAttention(w, 2, batch_first=True)
            self.convolution = torch.nn.Sequential(
                torch.nn.Conv1d(w, 2 * w, 1), torch.nn.GLU(1), torch.nn.Conv1d(w, w, 7, padding=3, groups=w),
                torch.nn.BatchNorm1d(w), torch.nn.SiLU(), torch.nn.Conv1d(w, w, 1),
            )  # fmt: skip

        def forward(self, frames: Any) -> Any:
            x = frames + self.first(frames) / 2
            y = self.norm(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            x = x + self.convolution(x.transpose(1, 2)).transpose(1, 2)
            return x + self.last(x) / 2

    return Module(Conformer(), {"frames": normal(2, 12 * scale, w)}, {"frames": {0: "batch"}})


@RECIPES("dynamo")
def spectrogram(scale: int) -> Module:
    """A front end: STFT, power, mel filters, logarithm."""
    import torch

    class Front(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(64))
            self.register_buffer("mel", torch.rand(33, 8))

        def forward(self, wave: Any) -> Any:
            parts = torch.stft(wave, 64, 32, window=self.window, return_complex=True, center=False)
            power = torch.view_as_real(parts).pow(2).sum(-1)
            return torch.log(1 + power.transpose(1, 2) @ self.mel)

    return Module(Front(), {"wave": normal(2, 640 * scale)})


@RECIPES()
def tacotron_encoder(scale: int) -> Module:
    """Encoder of Tacotron 2: embeddings, convolutions, and an LSTM in both directions."""
    import torch

    w = 16 * scale

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(100, w)
            self.convolutions = torch.nn.Sequential(
                torch.nn.Conv1d(w, w, 5, padding=2), torch.nn.BatchNorm1d(w), torch.nn.ReLU(), torch.nn.Dropout(0.5)
            )
            self.lstm = torch.nn.LSTM(w, w // 2, batch_first=True, bidirectional=True)

        def forward(self, ids: Any) -> Any:
            return self.lstm(self.convolutions(self.embed(ids).transpose(1, 2)).transpose(1, 2))[0]

    return Module(Encoder(), {"ids": tokens(2, 12)}, {"ids": {0: "batch", 1: "length"}})
