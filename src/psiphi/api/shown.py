"""What a trained learner shows of itself: a page to explore, the same in a notebook, and plain figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psiphi import disk, doors, printable
from psiphi.api import explore
from psiphi.api.answers import MOST_SHOWN, weightiest
from psiphi.api.kinds import Kinds
from psiphi.api.known import Known, Learned
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.worlds import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, GREY = "#0072B2", "0.6"
MOST_LABELS = 40
"""With more agents, a figure does not name them."""


class Shown(Learned):
    """A learner that can be looked at."""

    world: World | None = None

    def explore(self, demos: Demonstrations | Kinds | None = None, out: str | Path | None = None, *, title: str = "") -> Any:
        """See what the agents want: choose an agent, plot its reward, replay an episode, and move what is wanted by sliders.

        With `out`, an HTML file with everything in it, which works from a disk. Without, a widget for a notebook, which needs anywidget;
        ``widget.weights`` is then where the sliders are. Of `psiphi.find_kinds`, the page also says how likely an episode is of each kind.
        """
        known = self._trained()
        shares = demos.shares if isinstance(demos, Kinds) else None
        demos = demos.demos if isinstance(demos, Kinds) else demos
        if demos is not None:
            doors.demonstrations(demos, Demonstrations)
        if out is None:
            return widget(explore.data(known, demos, self.world, title=title, shares=shares))
        return write(doors.path(out, "The page"), known, demos, self.world, title=title, shares=shares)

    def plot(self) -> "Figure":
        """What the agents want, and who is like whom, as a figure of Matplotlib; in grey, agents of whom the verdict warns."""
        from matplotlib.figure import Figure

        known, preferences = self._trained(), self.preferences
        doubtful = () if known.verdict is None else known.verdict.doubtful
        names = preferences.names or tuple(f"cumulant {i + 1}" for i in range(preferences.w.shape[1]))
        chosen = weightiest(preferences.w, MOST_SHOWN)
        scale = np.maximum(np.abs(preferences.w).max(axis=1, keepdims=True), 1e-12)
        figure = Figure(figsize=(11, 1.8 + 0.28 * min(len(known.agents), MOST_LABELS)), layout="constrained")
        heat, places = figure.subplots(1, 2)
        image = heat.imshow((preferences.w / scale)[:, chosen], cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto")
        heat.set_xticks(range(len(chosen)), [printable.picture(names[i]) for i in chosen], rotation=60, ha="right", fontsize=8)
        heat.set_title("Preferences, in each agent's own scale")
        figure.colorbar(image, ax=heat)
        at = explore.placed(known.likeness, range(len(known.agents)))
        colours = [GREY if agent in doubtful else BLUE for agent in known.agents]
        places.scatter(at[:, 0], at[:, 1], c=colours)
        places.set_title("Agents whose rewards are alike are close")
        places.set_xticks([])
        places.set_yticks([])
        if len(known.agents) > MOST_LABELS:
            return figure
        heat.set_yticks(range(len(known.agents)), [printable.picture(agent) for agent in known.agents])
        for label, place, agent, colour in zip(heat.get_yticklabels(), at, known.agents, colours, strict=True):
            label.set_color(colour if colour == GREY else "black")
            places.annotate(printable.picture(agent), place, xytext=(5, 3), textcoords="offset points", color=colour, fontsize=8)
        return figure


def write(
    path: Path, known: Known, demos: Demonstrations | None, world: World | None, *, title: str = "", shares: np.ndarray | None = None
) -> Path:
    """Write the page, whole or not at all."""
    disk.check_file(path)
    disk.write(path, explore.html(explore.data(known, demos, world, title=title, shares=shares)).encode())
    return path


def widget(found: dict[str, Any]) -> Any:
    """The page as a widget."""
    try:
        import anywidget  # pyright: ignore[reportMissingImports]
        import traitlets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "A widget needs anywidget, which is not installed: expected pip install 'psiphi[notebook]', or explore(demos, 'page.html')."
        ) from error

    class Explorer(anywidget.AnyWidget):
        _esm = f"{explore.part('explore.js')}\n{NOTEBOOK}"
        _css = explore.part("explore.css")
        data = traitlets.Dict().tag(sync=True)
        weights = traitlets.List().tag(sync=True)

    return Explorer(data=found, weights=[slider["start"] for slider in found["sliders"]])


NOTEBOOK = """export default {
  render({ model, el }) {
    const state = explore(el, model.get("data"));
    el.addEventListener("input", () => { model.set("weights", [...state.weights]); model.save_changes(); });
    return () => { clearInterval(state.timer); clearInterval(state.walker); };
  },
};
"""
