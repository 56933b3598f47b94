"""A scenario of one's own arrays: converted where nothing is lost, refused with a remedy where something would be.

>>> images = np.zeros((8, 5, 5, 3), np.uint8)
>>> labels = ["cat", "dog", "owl", "rat"] * 2
>>> scenario = from_arrays(train=(images, labels), test=(images, labels), tasks=2)
>>> scenario.tasks, scenario.class_names, scenario.image_shape
(((0, 1), (2, 3)), ('cat', 'dog', 'owl', 'rat'), (3, 5, 5))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcr.augment import Views
from gcr.memory.examples import as_count, as_images, warn_of_scale
from gcr.scenarios.registry import OWN_TASKS, held_out
from gcr.scenarios.scenario import Images, Scenario, equal_tasks, in_unit
from gcr.select.checks import check_masked
from gcr.settings import BadInput

Values = NDArray[np.int64] | NDArray[np.str_]  # a user's own labels

LAYOUTS = ("auto", "chw", "hwc")
CHANNELS = (1, 3, 4)  # numbers that layout "auto" takes for channels


def from_arrays(
    train: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    tasks: int | Sequence[Sequence[int | str]] | None = None,
    *,
    name: str = "own",
    views: Views | None = None,
    class_order: int = 0,
    stream: int = 0,
    test_share: float = 0.2,
    layout: str = "auto",
    quantise: bool = False,
) -> Scenario:
    """Tasks over ``(images, labels)``: tensors, NumPy arrays or lists.

    Images are [n, h, w], [n, c, h, w] or [n, h, w, c]. Whole numbers from 0 to 255 are stored as uint8. Floats stay
    float32, unless ``quantise`` asks for uint8. Labels are whole numbers or text; ``Scenario.labels`` keeps them.

    ``tasks`` is a number, or the labels of each task; 5 if not given, or as many as there are classes. Without
    ``test``, ``test_share`` of each class is held out. ``views`` are measured on the training images if not given;
    images of 16 pixels or more are shifted then, and mirrored if they have three channels. ``class_order`` is the seed
    of a permutation of classes, 0 keeps their order. ``stream`` > 0 means online: examples of each stream.
    """
    pixels, values = _pair("train", train, layout, quantise)
    labels, classes = numbered(values)
    trained = Images(pixels, labels)
    if test is None:
        if not 0 < test_share < 1:
            raise BadInput(f"test_share must be between 0 and 1, got {test_share}; or give test=(images, labels)")
        if int(labels.bincount().min()) < 2:
            raise BadInput("each class needs two images so that one can be held out; give test=(images, labels)")
        trained, tested = held_out(trained, test_share)
    else:
        test_pixels, test_values = _pair("test", test, layout, quantise)
        tested = Images(test_pixels, numbered(test_values, classes)[0])
        if test_pixels.is_floating_point() and pixels.is_floating_point():
            warn_of_scale("test", test_pixels, "train", pixels)
    order = _tasks(tasks, classes, as_count("class_order", class_order, 0))
    _check_tested(order, tested, classes)
    if views is None:
        unit = all(pixels.dtype == torch.uint8 or in_unit(pixels) for pixels in (trained.pixels, tested.pixels))
        plain = {} if unit else {"jitter_share": 0.0, "grey_share": 0.0}  # geometric strong views
        views = Views.measured(trained.pixels, **Views.moves(trained.pixels.shape[1:]), **plain)
    length = as_count("stream", stream, 2) if stream else 0
    names = tuple(str(label) for label in classes)
    return Scenario(name, trained, tested, order, views, names, length, classes)


def _pair(name: str, pair: Any, layout: str, quantise: bool) -> tuple[Tensor, Values]:
    """Pixels [n, c, h, w] and the user's labels."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise BadInput(f"{name} must be (images, labels), got {type(pair).__name__}")
    pixels = _channels_first(f"{name} images", as_images(f"{name} images", pair[0]), layout)
    if pixels.is_floating_point():
        pixels = _floats(f"{name} images", pixels, quantise)
    return pixels, label_values(f"{name} labels", pair[1], len(pixels))


def _channels_first(name: str, images: Tensor, layout: str) -> Tensor:
    """[n, c, h, w]. The layout is known where one of two sides can be channels."""
    if layout not in LAYOUTS:
        raise BadInput(f'layout must be one of {", ".join(LAYOUTS)}, got "{layout}"')
    shape = tuple(images.shape)
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() != 4:
        raise BadInput(f"{name} must be [n, h, w], [n, c, h, w] or [n, h, w, c], got shape {shape}; reshape them")
    if layout == "auto":
        first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
        if first == last:
            which = "both may be channels" if first else "neither is 1, 3 or 4 channels"
            raise BadInput(f'{name} have shape {shape}: {which}; say layout="chw" or layout="hwc"')
        layout = "chw" if first else "hwc"
    return images if layout == "chw" else images.permute(0, 3, 1, 2).contiguous()


def _floats(name: str, images: Tensor, quantise: bool) -> Tensor:
    low, high = (float(value) for value in images.aminmax())
    if low >= 0 and 1.5 < high <= 255 and bool((images == images.round()).all()):
        raise BadInput(
            f"{name} are floats but look like bytes (whole numbers, {low:g}..{high:g}); convert to uint8 or divide "
            "by 255"
        )
    if not quantise:
        return images
    if low < 0 or high > 1:
        raise BadInput(f"{name} must be in [0, 1] to be quantised, got {low:g}..{high:g}; scale them, or leave it out")
    return (images * 255).round().to(torch.uint8)


def label_values(name: str, values: Any, n: int) -> Values:
    """[n] whole numbers or text.

    >>> label_values("labels", ["b", "a"], 2).tolist()
    ['b', 'a']
    """
    check_masked(name, values)
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()
    elif isinstance(values, list | tuple):
        values = [value.item() if isinstance(value, Tensor) and value.numel() == 1 else value for value in values]
        values = np.array(values, dtype=object)  # so that a number in a list of text stays one
    array = np.asarray(values)
    if array.shape != (n,):
        hint = "; one-hot labels become numbers with argmax(1)" if array.ndim == 2 and len(array) == n else ""
        raise BadInput(f"{name} must be one per image ({n}), got shape {array.shape}{hint}")
    if array.dtype.kind == "O":
        array = _of_one_kind(name, array)
    if array.dtype.kind == "U":
        return array.astype(np.str_)
    if array.dtype.kind not in "iu":
        raise BadInput(f"{name} must be whole numbers or text, got {array.dtype}; convert them to int64 or str")
    return array.astype(np.int64)


def _of_one_kind(name: str, array: NDArray[np.object_]) -> Values:
    text = isinstance(array[0], str)
    for row, value in enumerate(array):
        fits = isinstance(value, str) if text else isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not fits:
            rule = "text, as the first" if text else "whole numbers or text"
            raise BadInput(f"{name} must be {rule}, got {value!r} in row {row}; convert them to int64 or str")
    return array.astype(np.str_) if text else array.astype(np.int64)


def numbered(values: Values, classes: tuple[int | str, ...] = ()) -> tuple[Tensor, tuple[int | str, ...]]:
    """Class numbers, and the label of each class: those that occur, sorted, or the known ``classes``.

    >>> numbers, classes = numbered(np.array([7, 3, 7]))
    >>> numbers.tolist(), classes
    ([1, 0, 1], (3, 7))
    """
    if not classes:
        classes = tuple(np.unique(values).tolist())
        if len(classes) < 2:
            raise BadInput(f"train labels must have two classes or more, got {classes[0]!r} alone")
    known = np.array(classes)
    if known.dtype.kind != values.dtype.kind:
        kinds = ["text" if array.dtype.kind == "U" else "whole numbers" for array in (known, values)]
        raise BadInput(f"test labels must be {kinds[0]}, as the train labels, got {kinds[1]}")
    unknown = np.flatnonzero(~np.isin(values, known))
    if len(unknown):
        first = int(unknown[0])
        raise BadInput(
            f"test labels must occur among the train labels, got {values[first].item()!r} in row {first} "
            f"({len(unknown)} rows in all); leave these images out"
        )
    return torch.from_numpy(np.searchsorted(known, values)), classes


def _tasks(
    tasks: int | Sequence[Sequence[int | str]] | None, classes: tuple[int | str, ...], class_order: int
) -> tuple[tuple[int, ...], ...]:
    """Classes of each task, as numbers."""
    n_classes = len(classes)
    if tasks is None:
        return equal_tasks(n_classes, min(OWN_TASKS, n_classes), class_order)
    if not isinstance(tasks, Sequence | np.ndarray) or isinstance(tasks, str):
        n_tasks = as_count("tasks", tasks, 1)
        if n_tasks > n_classes:
            raise BadInput(f"tasks must be <= {n_classes}, the number of classes, got {tasks}")
        return equal_tasks(n_classes, n_tasks, class_order)
    if class_order:
        raise BadInput("class_order must be 0 where tasks name their labels; leave it out")
    number = {label: place for place, label in enumerate(classes)}
    order: list[tuple[int, ...]] = []
    for task in tasks:
        if isinstance(task, str) or not isinstance(task, Sequence | np.ndarray) or not len(task):
            raise BadInput(f"each task must be a tuple of its labels, got {task!r}")
        given = [label.item() if isinstance(label, np.generic | Tensor) else label for label in task]
        if unknown := [label for label in given if label not in number]:
            raise BadInput(f"tasks must name labels of the training images, got {unknown[0]!r}; they are {classes}")
        order.append(tuple(number[label] for label in given))
    named = [label for task in order for label in task]
    if sorted(named) != list(range(n_classes)):
        missing = [classes[label] for label in range(n_classes) if label not in named]
        raise BadInput(f"tasks must name each label once; {f'{missing} are missing' if missing else 'some come twice'}")
    return tuple(order)


def _check_tested(tasks: tuple[tuple[int, ...], ...], tested: Images, classes: tuple[int | str, ...]) -> None:
    present = set(tested.labels.tolist())
    for place, task in enumerate(tasks):
        if not present & set(task):
            labels = ", ".join(repr(classes[label]) for label in task)
            raise BadInput(f"task {place + 1} must have test images, got none of {labels}")
