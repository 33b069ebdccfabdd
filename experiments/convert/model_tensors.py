"""Names and shapes of the tensors of dptrain's models, as `--export` writes them: torch's names and order of axes.

    python3 model_tensors.py CLASSES CxHxW     prints "MODEL NAME SHAPE" for each tensor of each model

They follow net/models/*.cpp. tests/net/model_test.cpp compares them with the networks.
"""
from __future__ import annotations

import sys
from collections.abc import Callable

Shape = tuple[int, ...]
Image = tuple[int, int, int]  # channels, height, width


class _Tensors(dict[str, Shape]):
    """By name, in the order in which the layers are listed."""

    def conv(self, name: str, outputs: int, inputs: int, kernel: tuple[int, int] = (3, 3), has_bias: bool = False) -> int:
        """Returns the number of its outputs."""
        self[f"{name}.weight"] = (outputs, inputs, *kernel)
        if has_bias:
            self[f"{name}.bias"] = (outputs,)
        return outputs

    def norm(self, name: str, channels: int, has_scale: bool = True) -> None:
        for tensor in ("weight", "bias", "running_mean", "running_var")[0 if has_scale else 1:]:
            self[f"{name}.{tensor}"] = (channels,)

    def linear(self, name: str, outputs: int, inputs: int, has_bias: bool = True) -> None:
        self[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            self[f"{name}.bias"] = (outputs,)


def _blocks(tensors: _Tensors, blocks: list[int], widths: list[int], growth: int,
            block: Callable[[str, int, int, int], None]) -> int:
    """Calls block(name, inputs, width, stride) for each block of a residual network; returns the last one's outputs."""
    inputs = widths[0]
    for stage, (count, width) in enumerate(zip(blocks, widths)):
        for number in range(count):
            block(f"layer{stage + 1}.{number}", inputs, width, 2 if stage > 0 and number == 0 else 1)
            inputs = growth * width
    return inputs


def _resnet(blocks: list[int], widths: list[int], is_bottleneck: bool = False, is_imagenet: bool = False,
            has_shortcuts: bool = True) -> Callable[[int, Image], _Tensors]:
    def tensors_of(classes: int, image: Image) -> _Tensors:
        tensors = _Tensors()
        growth = 4 if is_bottleneck else 1

        def unit(name: str, number: str, outputs: int, inputs: int, kernel: tuple[int, int] = (3, 3)) -> int:
            tensors.conv(f"{name}conv{number}", outputs, inputs, kernel)
            tensors.norm(f"{name}bn{number}", outputs)
            return outputs

        def block(name: str, inputs: int, width: int, stride: int) -> None:
            if is_bottleneck:
                unit(f"{name}.", "1", width, inputs, (1, 1))
                unit(f"{name}.", "2", width, width)
                unit(f"{name}.", "3", 4 * width, width, (1, 1))
            else:
                unit(f"{name}.", "1", width, inputs)
                unit(f"{name}.", "2", width, width)
            if has_shortcuts and (stride != 1 or inputs != growth * width):
                path = f"{name}.{'downsample' if is_imagenet else 'shortcut'}"
                tensors.conv(f"{path}.0", growth * width, inputs, (1, 1))
                tensors.norm(f"{path}.1", growth * width)

        unit("", "1", widths[0], image[0], (7, 7) if is_imagenet else (3, 3))
        last = _blocks(tensors, blocks, widths, growth, block)
        tensors.linear("fc" if is_imagenet else "linear", classes, last)
        return tensors
    return tensors_of


def _preact(blocks: list[int], is_bottleneck: bool = False) -> Callable[[int, Image], _Tensors]:
    def tensors_of(classes: int, image: Image) -> _Tensors:
        tensors = _Tensors()
        growth = 4 if is_bottleneck else 1

        def block(name: str, inputs: int, width: int, stride: int) -> None:
            kernels = [(1, 1), (3, 3), (1, 1)] if is_bottleneck else [(3, 3), (3, 3)]
            outputs = [width] * (len(kernels) - 1) + [growth * width]
            before = inputs
            for number, (kernel, after) in enumerate(zip(kernels, outputs), 1):
                tensors.norm(f"{name}.bn{number}", before)
                before = tensors.conv(f"{name}.conv{number}", after, before, kernel)
            if stride != 1 or inputs != growth * width:
                tensors.conv(f"{name}.shortcut.0", growth * width, inputs, (1, 1))

        tensors.conv("conv1", 64, image[0])
        tensors.linear("linear", classes, _blocks(tensors, blocks, [64, 128, 256, 512], growth, block))
        return tensors
    return tensors_of


def _vgg16(has_norm: bool, is_imagenet: bool = False) -> Callable[[int, Image], _Tensors]:
    def tensors_of(classes: int, image: Image) -> _Tensors:
        tensors, number, inputs = _Tensors(), 0, image[0]
        for channels, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(convolutions):
                inputs = tensors.conv(f"features.{number}", channels, inputs, has_bias=True)
                if has_norm:
                    tensors.norm(f"features.{number + 1}", channels)
                number += 3 if has_norm else 2  # with the ReLU
            number += 1  # the pooling
        pixels = (image[1] // 32) * (image[2] // 32)
        if is_imagenet:
            tensors.linear("classifier.0", 4096, 512 * pixels)
            tensors.linear("classifier.3", 4096, 4096)
            tensors.linear("classifier.6", classes, 4096)
        else:
            tensors.linear("classifier", classes, 512 * pixels)
        return tensors
    return tensors_of


def _inception_v4(classes: int, image: Image) -> _Tensors:
    tensors = _Tensors()

    def chain(name: str, inputs: int, *units: int | tuple[int, int, int], first: int | None = 0) -> int:
        """Convolutions with normalisation, each its outputs and its kernel (none: 1x1): NAME.0, NAME.1, ..., or NAME
        alone."""
        for number, unit in enumerate(units, first or 0):
            outputs, *kernel = (unit, 1, 1) if isinstance(unit, int) else unit
            path = name if first is None else f"{name}.{number}"
            tensors.conv(f"{path}.conv", outputs, inputs, (kernel[0], kernel[1]))
            tensors.norm(f"{path}.bn", outputs)
            inputs = outputs
        return inputs

    def square(channels: int) -> tuple[int, int, int]:
        return channels, 3, 3

    chain("features", image[0], square(32), square(32), square(64))
    chain("features.3.conv", 64, square(96), first=None)
    chain("features.4.branch0", 160, 64, square(96))
    chain("features.4.branch1", 160, 64, (64, 1, 7), (64, 7, 1), square(96))
    chain("features.5.conv", 192, square(192), first=None)
    for block in range(6, 10):
        name = f"features.{block}"
        chain(f"{name}.branch0", 384, 96, first=1)
        chain(f"{name}.branch1", 384, 96, first=None)
        chain(f"{name}.branch2", 384, 64, square(96))
        chain(f"{name}.branch3", 384, 64, square(96), square(96))
    chain("features.10.branch1", 384, square(384), first=None)
    chain("features.10.branch2", 384, 192, square(224), square(256))
    for block in range(11, 18):
        name = f"features.{block}"
        chain(f"{name}.branch0", 1024, 128, first=1)
        chain(f"{name}.branch1", 1024, 384, first=None)
        chain(f"{name}.branch2", 1024, 192, (224, 1, 7), (256, 7, 1))
        chain(f"{name}.branch3", 1024, 192, (192, 7, 1), (224, 1, 7), (224, 7, 1), (256, 1, 7))
    chain("features.18.branch1", 1024, 192, square(192))
    chain("features.18.branch2", 1024, 256, (256, 1, 7), (320, 7, 1), square(320))
    for block in range(19, 22):
        name = f"features.{block}"
        chain(f"{name}.branch0", 1536, 256, first=1)
        chain(f"{name}.branch1", 1536, 256, first=None)
        two = chain(f"{name}.branch2_0", 1536, 384, first=None)
        three = chain(f"{name}.branch3_0", 1536, 384, first=None)
        three = chain(f"{name}.branch3_1", three, (448, 1, 3), first=None)
        three = chain(f"{name}.branch3_2", three, (512, 3, 1), first=None)
        for branch, inputs in (("branch2_1", two), ("branch3_3", three)):
            chain(f"{name}.{branch}a", inputs, (256, 1, 3), first=None)
            chain(f"{name}.{branch}b", inputs, (256, 3, 1), first=None)
    tensors.linear("last_linear", classes, 1536)
    return tensors


def _resnet9(classes: int, image: Image) -> _Tensors:
    tensors, inputs = _Tensors(), image[0]

    def unit(name: str, outputs: int, inputs: int) -> int:
        tensors.norm(f"{name}.bn", outputs)
        return tensors.conv(f"{name}.conv", outputs, inputs)

    for name, channels, is_residual in (("prep", 64, False), ("layer1", 128, True), ("layer2", 256, False),
                                        ("layer3", 512, True)):
        inputs = unit(name, channels, inputs)
        for part in ("res1", "res2") if is_residual else ():
            unit(f"{name}.{part}", channels, channels)
    tensors.linear("linear", classes, 512 * (image[1] // 32) * (image[2] // 32), has_bias=False)
    return tensors


def _airbench94(classes: int, image: Image) -> _Tensors:
    tensors = _Tensors()
    inputs = tensors.conv("whiten", 8 * image[0], image[0], (2, 2), has_bias=True)
    for block, channels in (("block1", 64), ("block2", 256), ("block3", 256)):
        for number in ("1", "2"):
            inputs = tensors.conv(f"{block}.conv{number}", channels, inputs)
            tensors.norm(f"{block}.norm{number}", channels, has_scale=False)
    tensors.linear("linear", classes, 256 * ((image[1] - 1) // 8 // 3) * ((image[2] - 1) // 8 // 3), has_bias=False)
    return tensors


_WIDE, _NARROW = [64, 128, 256, 512], [16, 32, 64]
_DEPTHS = {18: ([2, 2, 2, 2], False), 34: ([3, 4, 6, 3], False), 50: ([3, 4, 6, 3], True), 101: ([3, 4, 23, 3], True),
           152: ([3, 8, 36, 3], True)}

# In the order of `dptrain --help`.
MODELS: dict[str, Callable[[int, Image], _Tensors]] = {
    **{f"resnet{depth}": _resnet(blocks, _WIDE, big) for depth, (blocks, big) in _DEPTHS.items()},
    **{f"resnet{6 * n + 2}": _resnet([n] * 3, _NARROW, has_shortcuts=False) for n in (3, 5, 7, 9, 18)},
    **{f"resnet{6 * n + 2}b": _resnet([n] * 3, _NARROW) for n in (3, 5, 7, 9, 18)},
    **{f"resnet{depth}-imagenet": _resnet(blocks, _WIDE, big, True) for depth, (blocks, big) in _DEPTHS.items()},
    **{f"preact-resnet{depth}": _preact(blocks, big) for depth, (blocks, big) in _DEPTHS.items()},
    "inception-v4": _inception_v4, "inception-v4-imagenet": _inception_v4,
    "vgg16": _vgg16(False), "vgg16-bn": _vgg16(True),
    "vgg16-imagenet": _vgg16(False, True), "vgg16-bn-imagenet": _vgg16(True, True),
    "resnet9": _resnet9, "airbench94": _airbench94,
}


def usual_image(model: str) -> Image:
    """The size of the images for which the model was made."""
    if not model.endswith("-imagenet"):
        return (3, 32, 32)
    return (3, 299, 299) if model.startswith("inception") else (3, 224, 224)


def tensors_of(model: str, classes: int, image: Image) -> dict[str, Shape]:
    """The last matrix is the layer with a row for each class."""
    return MODELS[model](classes, image)


def main(classes: str, image: str) -> None:
    channels, height, width = map(int, image.split("x"))
    for model in MODELS:
        for name, shape in tensors_of(model, int(classes), (channels, height, width)).items():
            print(model, name, "x".join(map(str, shape)))


if __name__ == "__main__":
    main(*sys.argv[1:])
