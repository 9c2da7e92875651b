"""Traffic with highway-env's rules, as pure functions on arrays of cars.

`lanes` and `roads` say where cars can drive; `vehicles` what a car and its driver are; `neighbours`, `idm`, `mobil`, `routes` and
`control` what a driver decides; `kinematics` and `collisions` what then happens; `simulate` is one sub-step of all of it. On top,
`actions`, `observe` and `drive` are what Highway and Roundabout share. Distances are in metres, times in seconds, angles in radians; y
and headings grow to the *right* of a car that drives towards positive x, as in highway-env.
"""
