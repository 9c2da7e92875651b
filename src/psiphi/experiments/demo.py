"""`psiphi demo`: the whole method in three minutes, in plain words, with pictures."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from psiphi import report
from psiphi.envs import coingrid
from psiphi.experiments import coingrid as experiment
from psiphi.experiments import models, paper, pictures, reproduce
from psiphi.experiments.coingrid import Setting
from psiphi.model import Model, rewards
from psiphi.progress import clock

MEANING = {
    "R+G": "collect red and green",
    "R-G": "collect red, avoid green",
    "-R+G": "avoid red, collect green",
    "-R-G": "avoid both",
}


def demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> None:
    """Demonstrations, ITD, what was inferred, transfer to four new tasks, pictures. What `out` already holds is not done again."""
    console = console or Console(highlight=False)
    setting = demo_setting(quick)
    started = time.monotonic()
    console.print("[bold]PsiPhi-learning on CoinGrid[/bold]: learn what others want by watching, then pursue goals nobody showed you.\n")
    model = learn(console, setting, out, seed)
    phi_key, board_key, few_key, many_key, play_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3), 5)
    with stage(console, 3, "What do they want?", "Compare the inferred rewards with the true ones, which the learner never saw."):
        found = experiment.explained(setting, model, phi_key)
        picture = reproduce.picture(setting, model, np.asarray(found["cumulants"]), board_key)
        console.print(wants_table(setting, model, phi_key))
    with stage(console, 4, "Four new tasks", "Nobody showed them. The agent infers each from the rewards it meets: no training."):
        few = experiment.transfer(setting, model, few_key, shots=paper.FEW, repetitions=16 if quick else 256)
        many = experiment.transfer(setting, model, many_key, shots=paper.MANY, repetitions=2 if quick else 32)
        console.print(transfer_table(few, many))
    with stage(console, 5, "Pictures", "The cumulants over a board, and the agent at work on each of the four tasks."):
        files = draw(setting, model, picture, play_key, out)
    console.print(f"\nDone in {clock(time.monotonic() - started)}. The pictures:")
    for file, what in files:
        console.print(f"  [bold]{file}[/bold]  {what}", soft_wrap=True)
    console.print(f"\nAsk the model yourself: psiphi adapt {out / models.DIRECTORY} --task R-0.5G", soft_wrap=True)
    if quick:
        console.print("\nThis was the quick version: too little training for good numbers. Leave out --quick for those.")


def demo_setting(quick: bool) -> Setting:
    """The default of table 2; the quick one is only to see that everything runs."""
    return models.changed(Setting(), {"updates": 100, "episodes": 64} if quick else {})


@contextlib.contextmanager
def stage(console: Console, number: int, title: str, words: str) -> Iterator[None]:
    """Say what comes, then how long it took."""
    console.print(f"[bold]{number}. {title}[/bold] {words}")
    started = time.monotonic()
    yield
    console.print(f"   [dim]{time.monotonic() - started:.0f} s[/dim]\n")


def learn(console: Console, setting: Setting, out: Path, seed: int) -> Model:
    """Watch and learn, or take up what is there."""
    run = out / "run"
    directory = out / models.DIRECTORY
    if (directory / "manifest.json").exists():
        loaded = models.load(directory)
        if (loaded.setting, loaded.seed) == (setting, seed):
            console.print(f"[bold]1. and 2.[/bold] {directory} holds the trained model of an earlier demo; it is used again.\n")
            return loaded.model
    console.print(f"[bold]1. Demonstrations[/bold] {demonstration_words(setting)}\n")
    minutes = "a few seconds" if setting.updates < 1000 else "one to two minutes on two cores"
    words = f"{setting.updates:,} updates of inverse temporal-difference learning, after recording the above: {minutes}."
    with stage(console, 2, "Learning", words):
        trained = experiment.train(setting, seed, out=run)
        models.save(directory, trained, setting, "coingrid", seed)
    return trained.model


def demonstration_words(setting: Setting) -> str:
    return (
        f"Two demonstrators play {setting.episodes:,} episodes each. One wants red coins, the other green; "
        "the learner sees where they go, not why, and no reward."
    )


def wants_table(setting: Setting, model: Model, key: jax.Array) -> Table:
    """How the reward inferred for each demonstrator correlates with stepping on each colour."""
    steps = experiment.random_steps(setting.world, key)
    inferred = np.asarray(jax.jit(rewards)(model, steps.obs, steps.action))
    table = Table(title="Correlation of the inferred reward with stepping on a coin", title_justify="left")
    table.add_column("demonstrator (the truth, never told)")
    for colour in coingrid.COLOURS:
        table.add_column(colour, justify="right")
    for k, weights in enumerate(setting.demonstrators):
        row = [experiment.correlation(inferred[:, k], np.asarray(steps.features)[:, c]) for c in range(len(coingrid.COLOURS))]
        table.add_row(f"{k + 1} (wants {coingrid.task_name(weights)})", *_strongest_bold(row))
    return table


def _strongest_bold(row: Sequence[float]) -> list[str]:
    strongest = int(np.argmax(np.abs(row)))
    return [f"[bold]{value:+.2f}[/bold]" if i == strongest else f"{value:+.2f}" for i, value in enumerate(row)]


def transfer_table(few: dict[str, dict[str, float]], many: dict[str, dict[str, float]]) -> Table:
    """Normalised returns beside the paper's."""
    table = Table(title="Normalised return (-1 the least, 1 the most that a task allows)", title_justify="left")
    table.add_column("")
    for task in paper.TASKS:
        table.add_column(f"{task}\n[dim]{MEANING[task]}[/dim]", justify="right", max_width=13)
    rows = {
        "0-shot (first episode)": (few["first"], 0),
        "1-shot": (few["after"], paper.FEW),
        "100-shot": (many["after"], paper.MANY),
    }
    for name, (got, shots) in rows.items():
        table.add_row(name, *(f"[bold]{got[task]:.2f}[/bold]" for task in paper.TASKS))
        table.add_row("[dim]  the paper[/dim]", *(f"[dim]{number.value:.1f}[/dim]" for number in paper.TABLE_2[shots][paper.PSIPHI]))
    return table


def draw(setting: Setting, model: Model, picture: dict[str, Any], key: jax.Array, out: Path) -> list[tuple[Path, str]]:
    """PNG and HTML of the cumulants, and the GIF; gives the files and what they show."""
    png, page, gif = out / "cumulants.png", out / "cumulants.html", out / "retargeted.gif"
    report.draw_cumulants(png, page, picture, "What psiphi learned to care about, over a board of CoinGrid")
    adapt_key, *board_keys = jax.random.split(key, 3)
    agents = []
    for task, weights in coingrid.TASKS.items():
        w = models.adapt(setting, model, weights, adapt_key, shots=paper.FEW, repetitions=1).w[0]
        episodes = [pictures.play(setting, model, weights, w, board_key) for board_key in board_keys]
        agents.append(pictures.Strip(task, MEANING[task], episodes))
    pictures.write_gif(gif, agents)
    return [
        (png, "each learned cumulant over a board, with its correlation to each colour"),
        (page, "the same as a page, with the inferred preferences"),
        (gif, "the agent after one episode in each task: same boards, four goals"),
    ]
