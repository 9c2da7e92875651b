"""The worlds by name. Another one is a file beside this and a line in `WORLDS`; any Gymnasium id is a world, too."""

from collections.abc import Mapping

from psiphi.errors import UserError
from psiphi.worlds import coingrid, fruitbot, gym, highway, roundabout
from psiphi.worlds.world import OWN, Recorded, SideBySide, World

WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        coingrid.COINGRID,
        coingrid.COINGRID_25,
        highway.SINGLE_TASK,
        highway.ADVERSARIAL,
        highway.MULTI_TASK,
        roundabout.ROUNDABOUT,
        fruitbot.FRUITBOT,
    )
}

ALIASES: Mapping[str, str] = {
    "psiphi/CoinGrid-v0": "coingrid",
    "psiphi/Highway-SingleTask-v0": "highway-single-task",
    "psiphi/Highway-Adversarial-v0": "highway-adversarial",
    "psiphi/Highway-MultiTask-v0": "highway-multi-task",
    "psiphi/Roundabout-v0": "roundabout",
    "psiphi/FruitBot-v0": "fruitbot",
}
"""Our own Gymnasium ids are the same worlds, run compiled or side by side."""


def find(name: str, *, trusted: bool = True) -> World:
    """A world by its name, a Gymnasium id, or ``module:function``. A name out of a file is not `trusted`: it must not import anything."""
    name = ALIASES.get(name, name)
    if name in WORLDS:
        return WORLDS[name]
    if ":" in name and not trusted:
        raise UserError(f"The environment {name!r} is code of the user's, which a file must not run; name it: --env {name}")
    if not name or (":" not in name and "-v" not in name and "/" not in name and not name[0].isupper()):
        raise UserError(
            f"{name!r} is not a world; expected one of {', '.join(WORLDS)}, a Gymnasium id such as CartPole-v1, or module:function."
        )
    return gym.world(name)


__all__ = ["ALIASES", "OWN", "WORLDS", "Recorded", "SideBySide", "World", "find"]
