"""`psiphi demo`: the whole method in three minutes, in plain words, with pictures."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from psiphi import report, training, worlds
from psiphi.api import files, shown, trained
from psiphi.envs import coingrid
from psiphi.experiments import measures, paper, pictures
from psiphi.loops.few_shot import FewShotConfig, few_shot
from psiphi.model import Model, rewards
from psiphi.progress import clock
from psiphi.training import Run
from psiphi.worlds import coingrid as world

MEANING = {
    "R+G": "collect red and green",
    "R-G": "collect red, avoid green",
    "-R+G": "avoid red, collect green",
    "-R-G": "avoid both",
}


def demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> None:
    """Demonstrations, ITD, what was inferred, transfer to four new tasks, pictures. What `out` already holds is not done again."""
    console = console or Console(highlight=False)
    run = demo_run(quick, seed)
    started = time.monotonic()
    console.print(
        "[bold]PsiPhi-learning on CoinGrid[/bold]: learn what others want by watching, then pursue goals that were never shown.\n"
    )
    model = learn(console, run, out)
    phi_key, board_key, few_key, many_key, play_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3), 5)
    with stage(console, 3, "What do they want?", "Compare the inferred rewards with the true ones, which the learner never saw."):
        found = world.explained(run.world, run.demonstrators, model, phi_key)
        picture = pictures.described(run.world, run.demonstrators, model, np.asarray(found["cumulants"]), board_key)
        console.print(wants_table(run, model, phi_key))
    with stage(console, 4, "Four new tasks", "They were never shown. The agent infers each from the rewards it meets: no training."):
        few = measures.transfer(run.world, model, FewShotConfig(), few_key, shots=paper.FEW, repetitions=16 if quick else 256)
        many = measures.transfer(run.world, model, FewShotConfig(), many_key, shots=paper.MANY, repetitions=2 if quick else 32)
        console.print(transfer_table(few, many))
    with stage(console, 5, "Pictures", "The cumulants over a board, and the agent at work on each of the four tasks."):
        drawn = draw(run, model, picture, play_key, out)
        place = dataclasses.replace(worlds.find(run.env), config=run.world)
        known = files.read(out / files.DIRECTORY).known
        assert known is not None
        page = shown.write(out / "explore.html", known, None, place, title="What two demonstrators want")
        drawn.append((page, "a page: move what is wanted by sliders, and watch the agent"))
    console.print(f"\nDone in {clock(time.monotonic() - started)}. The pictures:")
    for file, what in drawn:
        console.print(f"  [bold]{file}[/bold]  {what}", soft_wrap=True)
    console.print(f"\nAsk the model yourself: psiphi adapt {out} --task R-0.5G", soft_wrap=True)
    if quick:
        console.print("\nThis was the quick version: too little training for good numbers. Leave out --quick for those.")


def demo_run(quick: bool, seed: int) -> Run:
    """The default of table 2; the quick one is only to see that everything runs."""
    run = training.default_run("itd", "coingrid", seed=seed)
    return training.completed(training.changed(run, {"updates": 100, "episodes": 64} if quick else {}))


@contextlib.contextmanager
def stage(console: Console, number: int, title: str, words: str) -> Iterator[None]:
    """Say what comes, then how long it took."""
    console.print(f"[bold]{number}. {title}[/bold] {words}")
    started = time.monotonic()
    yield
    console.print(f"   [dim]{time.monotonic() - started:.0f} s[/dim]\n")


def learn(console: Console, run: Run, out: Path) -> Model:
    """Watch and learn, or take up what is there."""
    directory = out / files.DIRECTORY
    if (directory / "manifest.json").exists():
        loaded = files.read(directory)
        if loaded.known is not None and (loaded.run, loaded.config) == (trained.run_of(run), run.agent):
            console.print(f"[bold]1. and 2.[/bold] {directory} holds the trained model of an earlier demo; it is used again.\n")
            return loaded.known.model
    console.print(f"[bold]1. Demonstrations[/bold] {demonstration_words(run)}\n")
    minutes = "a few seconds" if run.updates < 1000 else "one to two minutes on two cores"
    words = f"{run.updates:,} updates of inverse temporal-difference learning, after recording the above: {minutes}."
    with stage(console, 2, "Learning", words):
        result = training.train(run, out=out / "run")
        measures.warn_of_collapse(result)
        trained.save(directory, result)
    return trained.model_of(result)


def demonstration_words(run: Run) -> str:
    return (
        f"Two demonstrators play {run.episodes:,} episodes each. One wants red coins, the other green; "
        "the learner sees where they go, not why, and no reward."
    )


def wants_table(run: Run, model: Model, key: jax.Array) -> Table:
    """How the reward inferred for each demonstrator correlates with stepping on each colour."""
    steps = world.random_steps(run.world, key)
    inferred = np.asarray(jax.jit(rewards)(model, steps.obs, steps.action))
    table = Table(title="Correlation of the inferred reward with stepping on a coin", title_justify="left")
    table.add_column("demonstrator (the truth, never told)")
    for colour in coingrid.COLOURS:
        table.add_column(colour, justify="right")
    for k, name in enumerate(run.demonstrators):
        row = [world.correlation(inferred[:, k], np.asarray(steps.features)[:, c]) for c in range(len(coingrid.COLOURS))]
        table.add_row(f"{k + 1} (wants {name})", *_strongest_bold(row))
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


def draw(run: Run, model: Model, picture: dict[str, Any], key: jax.Array, out: Path) -> list[tuple[Path, str]]:
    """PNG and HTML of the cumulants, and the GIF; gives the files and what they show."""
    png, page, gif = out / "cumulants.png", out / "cumulants.html", out / "retargeted.gif"
    report.draw_cumulants(png, page, picture, "What psiphi learned to care about, over a board of CoinGrid")
    adapt_key, *board_keys = jax.random.split(key, 3)
    agents = []
    for task, weights in coingrid.TASKS.items():
        w = np.asarray(_adapted(run.world, model, jnp.asarray(weights), adapt_key))
        episodes = [pictures.play(run.world, FewShotConfig().temperature, model, weights, w, board_key) for board_key in board_keys]
        agents.append(pictures.Strip(task, MEANING[task], episodes))
    pictures.write_gif(gif, agents)
    return [
        (png, "each learned cumulant over a board, with its correlation to each colour"),
        (page, "the same as a page, with the inferred preferences"),
        (gif, "the agent after one episode in each task: same boards, four goals"),
    ]


@functools.partial(jax.jit, static_argnames="config")
def _adapted(config: coingrid.CoinGridConfig, model: Model, weights: jax.Array, key: jax.Array) -> jax.Array:
    """The preferences inferred from one episode in a task; compiled once for all tasks."""
    env = coingrid.make(config, weights)
    return few_shot(env, model, FewShotConfig(), key, shots=paper.FEW, repetitions=1, max_steps=config.max_steps).w[0]
