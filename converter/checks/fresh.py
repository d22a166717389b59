"""Whether a matrix is as an initialiser left it: its values drawn apart from one another from a known distribution.

Two starts are told. torch.nn.Linear draws from the uniform distribution within 1/sqrt(columns) of zero (torch 2.13.0
nn/modules/linear.py, `kaiming_uniform_` with a = sqrt(5)): no value lies beyond, and that of N values none lies within
10/N of it has the chance e^-10. Training moves some of millions of values over the edge within a few steps, and the
shape is then no longer flat. transformers draws from normal(0, initializer_range), 0.02 unless a config says otherwise
(5.24.0 modeling_utils.py `_init_weights`), and torch.nn.Embedding from normal(0, 1). These have no edge, so more must
agree: the width to what chance allows, the shape, and that neither rows nor columns differ in size by more than chance.
Training changes whole rows and columns together, which shows in the latter first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LINEAR = "uniform within 1/sqrt({columns}) of zero, as torch.nn.Linear starts"
NORMAL = "normal(0, {width:g}), as {what} starts"

WIDTH = 0.02  # transformers' initializer_range
_EMBEDDING_WIDTH = 1.0

_FEWEST = 1024  # values: fewer cannot tell
_SHAPE_VALUES = 4096  # of which the shape is told
# Kolmogorov's statistic, sqrt(N) times the largest gap between the two distribution functions, exceeds 2 by chance once
# in 1,500. Rounding to bf16 adds at most sqrt(4096) 2^-9 = 0.13. Trained matrices of 2,048 values begin at 4.
_SHAPE = 2.2
_CHANCE = 4.5  # standard errors: by chance once in 150,000
_ROUNDING = 2.0**-8  # a value rounded to bf16 is off by half of this part of itself


def start_of(values: NDArray[np.float32], *, table: bool = False) -> str:
    """The start that the values [rows, columns] of a matrix still have, in words; "" where they have none.

    table   it is an embedding, which starts otherwise; rows of zeros are left out of any matrix
    """
    import numpy as np

    values = values[values.any(axis=1)]
    if values.size < _FEWEST or min(values.shape) < 2 or not bool(np.isfinite(values).all()):
        return ""
    columns = values.shape[1]
    edge = 1 / math.sqrt(columns)
    reach = float(np.abs(values).max()) / edge
    if 1 - 10 / values.size - _ROUNDING <= reach <= 1 + _ROUNDING and _gap(values, lambda x: (x / edge + 1) / 2):
        return LINEAR.format(columns=f"{columns:,}")
    widths = {WIDTH: "transformers"} | ({_EMBEDDING_WIDTH: "torch.nn.Embedding"} if table else {})
    for width, what in widths.items():
        if _drawn_from_normal(values, width):
            return NORMAL.format(width=width, what=what)
    return ""


def _drawn_from_normal(values: NDArray[np.float32], width: float) -> bool:
    import numpy as np

    scaled = values.astype(np.float64) / width
    count = scaled.size
    size = math.sqrt(float(np.square(scaled).mean()))
    if abs(size - 1) > _CHANCE / math.sqrt(2 * count) + _ROUNDING / 8:
        return False
    if abs(float(scaled.mean())) > _CHANCE / math.sqrt(count):
        return False
    if not _alike(scaled, 0) or not _alike(scaled, 1):
        return False
    normal = np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2)
    return _gap(scaled, normal)


def _alike(values: NDArray[np.float64], axis: int) -> bool:
    """Mean squares along the axis differ from one another by no more than those of independent normal values do.

    The square of one has variance 2, so the mean of m has 2/m; the spread of k such means, over what it should be, has
    the standard error sqrt(2 / (k - 1)).
    """
    import numpy as np

    means = np.square(values).mean(axis=axis)
    spread: float = float(means.var(ddof=1)) * values.shape[axis] / 2
    limit: float = 1 + _CHANCE * math.sqrt(2 / (len(means) - 1))
    return bool(spread <= limit)


def _gap(values: NDArray[np.floating], distribution: Callable[[Any], Any]) -> bool:
    """Kolmogorov's test on some of the values, drawn with a fixed seed."""
    import numpy as np

    flat = values.reshape(-1)
    if flat.size > _SHAPE_VALUES:
        flat = flat[np.random.default_rng(0).integers(flat.size, size=_SHAPE_VALUES)]
    some = np.sort(flat)
    steps = (np.arange(len(some)) + 0.5) / len(some)
    return bool(math.sqrt(len(some)) * np.abs(distribution(some) - steps).max() < _SHAPE)
