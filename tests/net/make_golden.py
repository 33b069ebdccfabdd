#!/usr/bin/env python3
"""Writes tests/net/fixtures/*.txt: what PyTorch computes, in double, for golden_test.cpp and schedule_test.cpp.

    python3 tests/net/make_golden.py [NAME...]     (PyTorch 1.13 or later, torchvision; two minutes; without NAME: all)

The networks' weights, images and labels are not stored: both sides derive them from one integer hash (`derived` here,
tests/net/derived_values.hpp there), round them to float, and so start from the same bits. Stored are the results.

A line of a network's fixture is `kind name index value`:
    eval_logit      -          n * classes + k   logits in evaluation mode, from the derived running statistics
    logit           -          n * classes + k   logits in training mode, first step
    loss            -          step              mean loss of the step's batch, before its update
    gradient_norm   parameter  0                 first step's gradient, Euclidean norm
    gradient        parameter  i                 its i-th value in torch's order
    statistic       buffer     i                 running statistics after the first step's forward pass
A line of schedules.txt is `schedule step value`.
"""
import dataclasses
import pathlib
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

from golden_models import InceptionV4, PreActResNet
from golden_plain_models import Airbench94, ResNet9, Vgg16

FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures"
BATCHES = [8, 8, 5, 8, 8]  # one uneven step


def derived(name: str, count: int) -> np.ndarray:
    """count doubles in [-1, 1): a hash of name and position (FNV-1a, then SplitMix64's finaliser)."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    x = np.uint64(key) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def tensor(name: str, shape, centre: float, scale: float) -> torch.Tensor:
    values = (centre + scale * derived(name, int(np.prod(shape)))).astype(np.float32)
    return torch.from_numpy(values.astype(np.float64)).reshape(tuple(shape))


@dataclasses.dataclass
class Start:
    """Initial values that keep what ReLU and max pooling see away from the points where they switch.

    There a rounding decides, each processor rounds in its own way, and one of n values that switches changes a
    gradient by 1 / sqrt(n). Biases are therefore `beta` in two of four channels and -beta in the others: ReLU passes
    the ones and cuts the others for every image. The spread is about 0.15 beta: the weight of normalisation, or, without
    one, what `gain` makes of it. A filter's weights are w and -w for channels 2c and 2c + 1, so that it does not see
    the mean. `draw` chooses images without near ties in a pooling window; check_distance() says whether it did.
    """

    beta: float = 0.5
    gain: float = 13.0
    draw: int = 0


@dataclasses.dataclass
class Centred:
    """For bf16, which would lose digits to Start's mean: values around zero, but normalisation's bias around `beta`.

    Values that switch at ReLU are within bf16's tolerance.
    """

    beta: float


def centred(name: str, shape, beta: float) -> torch.Tensor:
    """Gain 1 convolutions (uniform, variance 2 / fan out) and everything else off its usual special value."""
    if len(shape) == 4:
        return tensor(name, shape, 0.0, (6.0 / (shape[0] * shape[2] * shape[3])) ** 0.5)
    if name.startswith("classifier.") and len(shape) == 2:
        return tensor(name, shape, 0.0, (6.0 / shape[1]) ** 0.5)
    if name.startswith(("linear.", "fc.", "last_linear.")):
        return tensor(name, shape, 0.0, 0.125)
    if name.endswith("weight") or name.endswith("running_var"):
        return tensor(name, shape, 1.0, 0.25)
    return tensor(name, shape, beta if name.endswith("bias") else 0.0, 0.25)


def initial(name: str, shape, start: Start | Centred, classes: int) -> torch.Tensor:
    if isinstance(start, Centred):
        return centred(name, shape, start.beta)
    if len(shape) >= 2:
        gain = start.gain if len(shape) == 4 else 0.2
        values = tensor(name, shape, 0.0, gain * (6.0 / int(np.prod(shape[1:]))) ** 0.5)
        if shape[0] != classes:
            pairs = shape[1] // 2 * 2
            values[:, 1:pairs:2] = -values[:, 0:pairs:2]
        return values
    if name.endswith("running_var"):
        return tensor(name, shape, 1.0, 0.25)
    if name.endswith("weight"):
        return tensor(name, shape, 0.15 * start.beta, 0.04 * start.beta)
    if name.endswith("running_mean") or shape[0] == classes:
        return tensor(name, shape, 0.0, 0.25)
    sign = 1.0 - np.arange(shape[0]) // 2 % 2 * 2.0
    values = start.beta * (sign + 0.1 * derived(name, shape[0]))
    return torch.from_numpy(values.astype(np.float32).astype(np.float64))


class Distance:
    """The smallest distance to a switching point that ReLU and max pooling have seen, relative to the tensor's rms."""

    def __init__(self):
        self.smallest = float("inf")
        self.relu, self.max_pool2d = F.relu, F.max_pool2d
        F.relu, F.max_pool2d = self.watched_relu, self.watched_max_pool2d

    def note(self, distances, x) -> None:
        if torch.is_grad_enabled() and distances.numel() > 0:
            self.smallest = min(self.smallest, (distances.min() / x.pow(2).mean().sqrt()).item())

    def watched_relu(self, x, inplace=False):
        self.note(x.detach().abs(), x.detach())
        return self.relu(x)

    def watched_max_pool2d(self, x, kernel_size, stride=None, padding=0, *_, **__):
        seen = F.pad(x.detach(), (padding,) * 4, value=-1e30)
        step = stride or kernel_size
        windows = seen.unfold(2, kernel_size, step).unfold(3, kernel_size, step).flatten(4)
        first, second = windows.topk(2, -1).values.unbind(-1)
        # Zeros after ReLU are equal, and have no gradient.
        self.note((first - second)[first != 0], x.detach())
        return self.max_pool2d(x, kernel_size, stride, padding)


DISTANCE = Distance()
# fp32 on any processor is off by a tenth of this.
SMALLEST_DISTANCE = 1.5e-6


def check_distance(name: str) -> None:
    distance, DISTANCE.smallest = DISTANCE.smallest, float("inf")
    print(f"{name}: {distance:.1e} from the next switching point")
    if distance < SMALLEST_DISTANCE:
        sys.exit(f"{name}: a value is {distance:.1e} from a switching point, less than {SMALLEST_DISTANCE}: "
                 "choose another draw, here and in golden_test.cpp")


def images(step: int, batch: int, size: int, start: Start | Centred) -> torch.Tensor:
    """N C H W from values in N H W C order."""
    draw = "" if isinstance(start, Centred) else f".{start.draw}"
    return tensor(f"images{step}{draw}", (batch, size, size, 3), 0.0, 2.0).permute(0, 3, 1, 2).contiguous()


def labels(step: int, batch: int, classes: int) -> torch.Tensor:
    return torch.from_numpy(((derived(f"labels{step}", batch) + 1.0) * 0.5 * classes).astype(np.int64))


class PadShortcut(nn.Module):
    """Option A, zeros split evenly before and after."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, option: str):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(inputs, width, stride, option)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, option: str):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = shortcut(inputs, 4 * width, stride, option)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int, option: str) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    if option == "A":
        return PadShortcut(inputs, outputs)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, blocks, widths, block=BasicBlock, option="B", classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        channels, expansion = widths[0], 4 if block is Bottleneck else 1
        for stage, (count, width) in enumerate(zip(blocks, widths)):
            layers = []
            for i in range(count):
                layers.append(block(channels, width, 2 if stage > 0 and i == 0 else 1, option))
                channels = expansion * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


def write(name: str, lines) -> None:
    path = FIXTURES / f"{name}.txt"
    with open(path, "w") as file:
        for kind, tensor_name, index, value in lines:
            file.write(f"{kind} {tensor_name} {index} {value:.9g}\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


def samples(kind: str, name: str, values: torch.Tensor, count: int):
    """A few values spread over the tensor."""
    flat = values.detach().reshape(-1)
    for k in range(count):
        i = (2 * k + 1) * flat.numel() // (2 * count)
        yield kind, name, i, flat[i].item()


def golden(name: str, make, start: Start | Centred, lr=0.002, nesterov=False, smoothing=0.0, steps=5, size=32,
           stored=4, batches=tuple(BATCHES)) -> None:
    """stored: how many values of each tensor."""
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    model = make().double()
    classes = list(model.modules())[-1].out_features
    trained = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
    ones = {key for key, value in model.named_parameters() if key not in trained and value.dim() == 1}
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if not key.endswith("num_batches_tracked") and key not in ones:
                value.copy_(initial(key, value.shape, start, classes))
    lines = []
    model.eval()
    with torch.no_grad():
        lines += [("eval_logit", "-", i, v.item()) for i, v in enumerate(model(images(0, batches[0], size, start)).reshape(-1))]
    model.train()
    optimiser = torch.optim.SGD(trained.values(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=nesterov)
    loss_function = nn.CrossEntropyLoss(label_smoothing=smoothing)
    batches = batches[:steps]
    for step, batch in enumerate(batches):
        optimiser.zero_grad()
        logits = model(images(step, batch, size, start))
        loss = loss_function(logits, labels(step, batch, classes))
        loss.backward()
        lines.append(("loss", "-", step, loss.item()))
        if step == 0:
            lines += [("logit", "-", i, v.item()) for i, v in enumerate(logits.reshape(-1))]
            for key, parameter in trained.items():
                lines.append(("gradient_norm", key, 0, parameter.grad.norm().item()))
                lines += samples("gradient", key, parameter.grad, stored)
            for key, buffer in model.named_buffers():
                if not key.endswith("num_batches_tracked"):
                    lines += samples("statistic", key, buffer, stored)
        # The last step's gradient is not compared, but for the first step's.
        if isinstance(start, Start) and step + 1 < max(len(batches), 2):
            check_distance(name)
        optimiser.step()
    write(name, lines)


def schedules() -> None:
    """The learning rate of every step; the settings are repeated in schedule_test.cpp."""

    def rates(peak, steps, make):
        optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak, momentum=0.9)
        scheduler = make(optimiser)
        for step in range(steps):
            yield step, scheduler.get_last_lr()[0]
            optimiser.step()
            if step + 1 < steps:
                scheduler.step()

    from torch.optim import lr_scheduler as lrs

    cases = {
        "onecycle65": rates(0.2, 65, lambda o: lrs.OneCycleLR(o, 0.2, total_steps=65, cycle_momentum=False)),
        "onecycle3": rates(0.2, 3, lambda o: lrs.OneCycleLR(o, 0.2, total_steps=3, cycle_momentum=False)),
        "cosine": rates(0.1, 40, lambda o: lrs.CosineAnnealingLR(o, T_max=40)),
        "step": rates(0.1, 30, lambda o: lrs.MultiStepLR(o, milestones=[9, 18, 24], gamma=0.2)),
    }
    path = FIXTURES / "schedules.txt"
    with open(path, "w") as file:
        for name, rows in cases.items():
            for step, rate in rows:
                file.write(f"{name} {step} {rate:.15g}\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    if not sys.argv[1:]:
        schedules()
    narrow, wide = [16, 32, 64], [64, 128, 256, 512]
    residual = Start(gain=7.0)  # smaller: every block adds to the variance
    golden("resnet20", lambda: ResNet([3, 3, 3], narrow, option="A"), residual, nesterov=True)
    golden("resnet20b", lambda: ResNet([3, 3, 3], narrow, classes=100), residual, smoothing=0.1)
    golden("resnet18", lambda: ResNet([2, 2, 2, 2], wide), residual)
    golden("resnet50", lambda: ResNet([3, 4, 6, 3], wide, Bottleneck), Start(gain=7.0, draw=1), steps=1)
    # Deep networks on small images, so that tests are quick.
    golden("resnet18-imagenet", lambda: torchvision.models.resnet18(num_classes=10), Start(gain=7.0, draw=8), steps=2,
           size=48)
    golden("resnet50-imagenet", lambda: torchvision.models.resnet50(num_classes=10), Start(gain=7.0, draw=8), steps=1,
           size=48, stored=2)
    golden("preact-resnet18", lambda: PreActResNet([2, 2, 2, 2]), residual, steps=2, size=16)
    golden("preact-resnet50", lambda: PreActResNet([3, 4, 6, 3], expansion=4), residual, steps=1, size=16)
    golden("inception-v4", lambda: InceptionV4(small=True), Start(draw=3), steps=1, size=12, stored=3)
    golden("inception-v4-imagenet", lambda: InceptionV4(small=False), Start(draw=11), steps=1, size=80, stored=3)
    golden("resnet9", ResNet9, Start(draw=7), batches=[4])
    golden("airbench94", Airbench94, Start(gain=1.0, draw=2), batches=[8, 5])
    golden("vgg16-bn", lambda: Vgg16(has_norm=True), Start(draw=10), batches=[6])
    golden("vgg16-imagenet", lambda: Vgg16(has_norm=False, hidden=4096), Start(beta=8.0, gain=1.0), batches=[4])
    golden("resnet20-bf16", lambda: ResNet([3, 3, 3], narrow, option="A"), Centred(0.0), lr=0.05, nesterov=True)
    golden("resnet20b-bf16", lambda: ResNet([3, 3, 3], narrow, classes=100), Centred(0.0), lr=0.05, smoothing=0.1)
    golden("resnet18-bf16", lambda: ResNet([2, 2, 2, 2], wide), Centred(2.0), lr=0.02)
    golden("resnet18-imagenet-bf16", lambda: torchvision.models.resnet18(num_classes=10), Centred(0.5), lr=0.02, steps=2,
           size=48)
    golden("preact-resnet18-bf16", lambda: PreActResNet([2, 2, 2, 2]), Centred(2.0), lr=0.02, steps=2, size=16)
    golden("inception-v4-bf16", lambda: InceptionV4(small=True), Centred(2.0), lr=0.02, steps=1, size=12, stored=3)
    golden("resnet9-bf16", ResNet9, Centred(2.0), lr=0.02, batches=[4])
    golden("airbench94-bf16", Airbench94, Centred(0.0), lr=0.02, batches=[8, 5])
    golden("vgg16-bn-bf16", lambda: Vgg16(has_norm=True), Centred(2.0), lr=0.02, batches=[6])
