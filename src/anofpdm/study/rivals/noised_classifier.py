"""Classifier of noisy slices, healthy or unhealthy: the guide of the classifier-guided baselines."""

import torch
from torch import Tensor, nn

from anofpdm.network.blocks import ScaledNorm, Stage
from anofpdm.network.config import UNetConfig
from anofpdm.network.unet import Embedding, Encoder

CLASSES = 2  # HEALTHY and UNHEALTHY


class NoisedClassifier(nn.Module):
    """The encoder of the U-Net, with attention pooling by one learned query."""

    def __init__(self, config: UNetConfig):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.encoder = Encoder(config)
        width = self.encoder.out_channels
        self.middle = Stage(config, width, width, attend=True, blocks=2)
        self.norm = ScaledNorm(width)
        self.question = nn.Parameter(torch.randn(1, 1, width) / width**0.5)
        self.pool = nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.answer = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x [N, C, H, W] noisy slices, t [N] levels -> logits [N, 2], float32."""
        unknown = torch.full((len(x),), self.config.null_label, device=x.device)
        embedding = self.embedding(t, unknown)
        deepest = self.encoder(x.contiguous(memory_format=torch.channels_last), embedding, unknown)[-1]
        places = self.norm(self.middle(deepest, embedding, unknown)).flatten(2).transpose(1, 2)  # [N, HW, C]
        gathered, _ = self.pool(self.question.expand(len(x), -1, -1), places, places, need_weights=False)
        logits: Tensor = self.answer(gathered[:, 0])
        return logits.float()
