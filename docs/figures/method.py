"""Draws method.svg, the picture of the method on the page of concepts: ``python docs/figures/method.py``."""

from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, FAINT = "#222222", "#666666"
DATA, LEARNED, USED = "#eef2f7", "#fdf3dc", "#e6f3ea"


class Box(NamedTuple):
    """A thing: where, what it is called, what it is."""

    x: float
    y: float
    width: float
    height: float
    title: str
    words: str
    colour: str


class Arrow(NamedTuple):
    """From one point to another, and why."""

    start: tuple[float, float]
    end: tuple[float, float]
    words: str
    at: tuple[float, float]
    """Where the words stand."""
    both: bool = False


BOXES = [
    Box(0.1, 3.0, 2.3, 1.9, "logs of K agents", "who, what they saw,\nwhat they did\nno rewards", DATA),
    Box(4.0, 4.1, 2.9, 1.0, r"cumulants  $\phi(s, a)$", "what can matter: shared by all", LEARNED),
    Box(4.0, 2.65, 2.9, 1.0, r"successor features  $\psi_k(s, a)$", r"how much $\phi$ will follow, if agent k goes on", LEARNED),
    Box(4.0, 1.2, 2.9, 1.0, r"preferences  $w_k$", "how much agent k cares", LEARNED),
    Box(8.7, 4.1, 2.9, 1.0, r"rewards  $\phi \cdot w_k$", "what each agent is paid", USED),
    Box(8.7, 2.65, 2.9, 1.0, r"policies  softmax$(\beta\, \psi_k \cdot w_k)$", "what each agent would do", USED),
    Box(8.7, 1.2, 2.9, 1.0, r"a new task  $w$", r"act by $\max_k\, \psi_k \cdot w$ (GPI)", USED),
    Box(8.7, -0.15, 2.9, 0.75, "rewards of one episode", "the only ones ever seen", DATA),
]
ARROWS = [
    Arrow((2.45, 4.2), (3.95, 4.6), "inverse TD", (3.1, 4.62)),
    Arrow((2.45, 3.7), (3.95, 3.2), "imitation", (3.1, 3.68)),
    Arrow((5.45, 3.7), (5.45, 4.05), r"$\phi = \psi_k - \gamma\, \psi_k^{\prime}$", (6.25, 3.87), both=True),
    Arrow((6.95, 4.6), (8.65, 4.6), "", (0, 0)),
    Arrow((6.95, 1.9), (8.65, 4.35), "", (0, 0)),
    Arrow((6.95, 3.15), (8.65, 3.15), "", (0, 0)),
    Arrow((6.95, 1.7), (8.65, 2.95), "", (0, 0)),
    Arrow((6.95, 2.85), (8.65, 1.8), "", (0, 0)),
    Arrow((10.15, 0.65), (10.15, 1.15), r"regress on $\phi$", (10.9, 0.9)),
]


def box(axes: Axes, b: Box) -> None:
    axes.add_patch(
        FancyBboxPatch((b.x, b.y), b.width, b.height, boxstyle="round,pad=0.04", facecolor=b.colour, edgecolor=INK, linewidth=0.8)
    )
    middle, above = b.x + b.width / 2, 0.2 + 0.1 * b.words.count("\n")
    axes.text(middle, b.y + b.height / 2 + above, b.title, ha="center", va="center", fontsize=10, color=INK)
    axes.text(middle, b.y + b.height / 2 - 0.24, b.words, ha="center", va="center", fontsize=7.5, color=FAINT)


def arrow(axes: Axes, a: Arrow) -> None:
    style = "<|-|>" if a.both else "-|>"
    axes.add_patch(FancyArrowPatch(a.start, a.end, arrowstyle=style, mutation_scale=9, linewidth=0.9, color=INK, shrinkA=0, shrinkB=0))
    axes.text(*a.at, a.words, ha="center", va="center", fontsize=7.5, color=INK)


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "psiphi"  # the same picture is the same file
    figure, axes = plt.subplots(figsize=(9.2, 4.3))
    axes.set(xlim=(-0.05, 11.75), ylim=(-0.35, 5.4))
    axes.axis("off")
    for x, words in ((1.25, "given"), (5.45, "learned"), (10.15, "yours to use")):
        axes.text(x, 5.27, words, ha="center", va="center", fontsize=8, color=FAINT, style="italic")
    for b in BOXES:
        box(axes, b)
    for a in ARROWS:
        arrow(axes, a)
    figure.tight_layout(pad=0.2)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
