"""The algebra: monoids, one family a file. `hailstorm` exports these names; see docs/reference/monoids.md."""

from hailstorm.algebra.counting import all, any, count
from hailstorm.algebra.extremes import earliest, latest, max, min
from hailstorm.algebra.maps import histogram, map_sum
from hailstorm.algebra.moments import stddev, variance
from hailstorm.algebra.monoid import Monoid
from hailstorm.algebra.sets import bitmap, set
from hailstorm.algebra.sketches import count_distinct, quantiles
from hailstorm.algebra.sums import mean, sum
from hailstorm.algebra.tops import frequent, top

__all__ = [
    "Monoid",
    "all",
    "any",
    "bitmap",
    "count",
    "count_distinct",
    "earliest",
    "frequent",
    "histogram",
    "latest",
    "map_sum",
    "max",
    "mean",
    "min",
    "quantiles",
    "set",
    "stddev",
    "sum",
    "top",
    "variance",
]
