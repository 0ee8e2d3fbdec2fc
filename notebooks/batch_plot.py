"""The plot of a stream's batches, from what the manifest store knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import matplotlib.dates as mdates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from penstock.committers.contract import ManifestRecord
