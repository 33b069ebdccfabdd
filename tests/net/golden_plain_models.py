"""PyTorch definitions of VGG16, ResNet-9 and airbench94 for make_golden.py; module names are dptrain's parameter names."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DROPOUT_STREAM = 7  # RandomStream::dropout


def mix64(x):
    with np.errstate(over="ignore"):
        x = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


class CounterDropout(nn.Module):
    """Dropout with the mask of kernels/dropout.hpp: seed 1, step 0, one rank."""

    def __init__(self, probability: float, stream: int):
        super().__init__()
        self.probability, self.stream = probability, stream

    def forward(self, x):
        if not self.training:
            return x
        key = mix64(1)
        for part in (DROPOUT_STREAM, 0, self.stream):
            key = mix64(key ^ np.uint64(part))
        bits = mix64(key ^ mix64(np.arange(x.numel(), dtype=np.uint64)))
        keeps = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 >= self.probability
        return x * torch.from_numpy(keeps.reshape(tuple(x.shape)) / (1 - self.probability))


class Vgg16(nn.Module):
    """CIFAR form (kuangliu/pytorch-cifar) or, with `hidden`, torchvision's without its scaling to 7 x 7 pixels."""

    def __init__(self, has_norm: bool, hidden: int = 0, classes: int = 10):
        super().__init__()
        layers, channels = [], 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width)] if has_norm else []
                layers.append(nn.ReLU())
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        if hidden == 0:
            self.classifier = nn.Linear(512, classes)
        else:
            self.classifier = nn.Sequential(
                nn.Linear(512, hidden), nn.ReLU(), CounterDropout(0.5, 1), nn.Linear(hidden, hidden), nn.ReLU(),
                CounterDropout(0.5, 2), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class ConvBnRelu(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class PooledLayer(ConvBnRelu):
    """cifar10-fast's layer: convolution, pooling and perhaps a residual pair."""

    def __init__(self, inputs: int, outputs: int, is_residual: bool):
        super().__init__(inputs, outputs)
        self.is_residual = is_residual
        if is_residual:
            self.res1, self.res2 = ConvBnRelu(outputs, outputs), ConvBnRelu(outputs, outputs)

    def forward(self, x):
        x = F.max_pool2d(super().forward(x), 2)
        return x + self.res2(self.res1(x)) if self.is_residual else x


class ResNet9(nn.Module):
    def __init__(self, classes: int = 10):
        super().__init__()
        self.prep = ConvBnRelu(3, 64)
        self.layer1, self.layer2, self.layer3 = (PooledLayer(64, 128, True), PooledLayer(128, 256, False),
                                                 PooledLayer(256, 512, True))
        self.linear = nn.Linear(512, classes, bias=False)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.prep(x))))
        return self.linear(F.max_pool2d(x, 4).flatten(1)) * 0.125


def norm_without_scale(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=1 - 0.6)
    norm.weight.requires_grad = False
    return norm


class AirbenchBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
        self.norm1 = norm_without_scale(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False)
        self.norm2 = norm_without_scale(outputs)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Airbench94(nn.Module):
    def __init__(self, classes: int = 10):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        self.block1, self.block2, self.block3 = AirbenchBlock(24, 64), AirbenchBlock(64, 256), AirbenchBlock(256, 256)
        self.linear = nn.Linear(256, classes, bias=False)

    def forward(self, x):
        x = self.block3(self.block2(self.block1(F.gelu(self.whiten(x)))))
        return self.linear(F.max_pool2d(x, 3).flatten(1)) / 9
