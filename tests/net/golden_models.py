"""Networks in PyTorch for make_golden.py: PreAct-ResNet and Inception v4, with the names that dptrain gives to tensors.

ResNets in ImageNet form come from torchvision.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, or with `expansion` 4 a bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int):
        super().__init__()
        outputs = expansion * width
        kernels = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)] if expansion > 1 else \
            [(inputs, width, 3, stride), (width, width, 3, 1)]
        self.depth = len(kernels)
        for i, (before, after, size, step) in enumerate(kernels, 1):
            setattr(self, f"bn{i}", nn.BatchNorm2d(before))
            setattr(self, f"conv{i}", nn.Conv2d(before, after, size, step, size // 2, bias=False))
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, x):
        y = F.relu(self.bn1(x))
        shortcut = self.shortcut(y) if hasattr(self, "shortcut") else x
        y = self.conv1(y)
        for i in range(2, self.depth + 1):
            y = getattr(self, f"conv{i}")(F.relu(getattr(self, f"bn{i}")(y)))
        return y + shortcut


class PreActResNet(nn.Module):
    def __init__(self, blocks, expansion=1, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        channels, stages = 64, []
        for stage, count in enumerate(blocks):
            width, layers = 64 * 2**stage, []
            for i in range(count):
                layers.append(PreActBlock(channels, width, 2 if stage > 0 and i == 0 else 1, expansion))
                channels = expansion * width
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.linear = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Unit(nn.Module):
    def __init__(self, inputs, outputs, kernel, stride=1, padding=0, eps=1e-5):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=eps)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Branches(nn.Module):
    """Modules by name, all on the same input, joined in this order."""

    def __init__(self, **branches):
        super().__init__()
        for name, module in branches.items():
            self.add_module(name, module)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.children()], 1)


class InceptionC(nn.Module):
    def __init__(self, unit, pool):
        super().__init__()
        self.branch0 = nn.Sequential(pool(), unit(1536, 256, 1))
        self.branch1 = unit(1536, 256, 1)
        self.branch2_0 = unit(1536, 384, 1)
        self.branch2_1a = unit(384, 256, (1, 3), 1, (0, 1))
        self.branch2_1b = unit(384, 256, (3, 1), 1, (1, 0))
        self.branch3_0 = unit(1536, 384, 1)
        self.branch3_1 = unit(384, 448, (1, 3), 1, (0, 1))
        self.branch3_2 = unit(448, 512, (3, 1), 1, (1, 0))
        self.branch3_3a = unit(512, 256, (1, 3), 1, (0, 1))
        self.branch3_3b = unit(512, 256, (3, 1), 1, (1, 0))

    def forward(self, x):
        two, three = self.branch2_0(x), self.branch3_2(self.branch3_1(self.branch3_0(x)))
        return torch.cat([self.branch0(x), self.branch1(x), self.branch2_1a(two), self.branch2_1b(two),
                          self.branch3_3a(three), self.branch3_3b(three)], 1)


class InceptionV4(nn.Module):
    """dptrain's modules and names; small: with the strides and paddings for 32 x 32 pixels."""

    def __init__(self, small: bool, classes=10):
        super().__init__()

        def unit(inputs, outputs, kernel, stride=1, padding=0):
            return Unit(inputs, outputs, kernel, stride, padding, 1e-5 if small else 1e-3)

        def pool():
            return nn.AvgPool2d(3, 1, 1, count_include_pad=small)

        row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
        stride, padding = (1, 1) if small else (2, 0)
        stages = [
            unit(3, 32, 3, stride), unit(32, 32, 3, 1, padding), unit(32, 64, 3, 1, 1),
            Branches(maxpool=nn.MaxPool2d(3, stride, padding), conv=unit(64, 96, 3, stride, padding)),
            Branches(
                branch0=nn.Sequential(unit(160, 64, 1), unit(64, 96, 3, 1, padding)),
                branch1=nn.Sequential(unit(160, 64, 1), unit(64, 64, *row), unit(64, 64, *column),
                                      unit(64, 96, 3, 1, padding))),
            Branches(conv=unit(192, 192, 3, stride, padding), maxpool=nn.MaxPool2d(3, stride, padding)),
        ]
        stages += [Branches(
            branch0=nn.Sequential(pool(), unit(384, 96, 1)),
            branch1=unit(384, 96, 1),
            branch2=nn.Sequential(unit(384, 64, 1), unit(64, 96, 3, 1, 1)),
            branch3=nn.Sequential(unit(384, 64, 1), unit(64, 96, 3, 1, 1), unit(96, 96, 3, 1, 1))) for _ in range(4)]
        stages.append(Branches(
            branch0=nn.MaxPool2d(3, 2),
            branch1=unit(384, 384, 3, 2),
            branch2=nn.Sequential(unit(384, 192, 1), unit(192, 224, 3, 1, 1), unit(224, 256, 3, 2))))
        stages += [Branches(
            branch0=nn.Sequential(pool(), unit(1024, 128, 1)),
            branch1=unit(1024, 384, 1),
            branch2=nn.Sequential(unit(1024, 192, 1), unit(192, 224, *row), unit(224, 256, *column)),
            branch3=nn.Sequential(unit(1024, 192, 1), unit(192, 192, *column), unit(192, 224, *row),
                                  unit(224, 224, *column), unit(224, 256, *row))) for _ in range(7)]
        padding = 1 if small else 0
        stages.append(Branches(
            branch0=nn.MaxPool2d(3, 2, padding),
            branch1=nn.Sequential(unit(1024, 192, 1), unit(192, 192, 3, 2, padding)),
            branch2=nn.Sequential(unit(1024, 256, 1), unit(256, 256, *row), unit(256, 320, *column),
                                  unit(320, 320, 3, 2, padding))))
        stages += [InceptionC(unit, pool) for _ in range(3)]
        self.features = nn.Sequential(*stages)
        self.last_linear = nn.Linear(1536, classes)

    def forward(self, x):
        return self.last_linear(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))
