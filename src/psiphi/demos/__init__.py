"""The demonstrations a user brings: read, write, check, record.

    demos = Demonstrations.read("drivers.parquet")      # or .csv, .npz, a Minari dataset
    train, test = demos.split(held_out=0.1, seed=0)
    agent = itd.make(config, demos.spec, len(demos.agents))
    state = agent.init(key, train.to_demos())

Nothing here needs JAX until `to_demos`, and nothing needs pyarrow, h5py or Minari until a file of that format is met.
"""

from psiphi.demos.columns import Columns
from psiphi.demos.demonstrations import Demonstrations, Trajectory
from psiphi.demos.discretiser import Discretiser, Recipe
from psiphi.demos.problems import DemonstrationsError, Problem
from psiphi.demos.tracks import Motion, from_tracks

__all__ = ["Columns", "Demonstrations", "DemonstrationsError", "Discretiser", "Motion", "Problem", "Recipe", "Trajectory", "from_tracks"]
