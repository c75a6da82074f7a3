"""Which modules travel with a user's functions."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import cloudpickle

import hailstorm
from hailstorm.engine.spark.shipping import ship_by_value


def test_modules_of_the_apps_folder_travel_and_hailstorm_in_that_folder_does_not() -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    try:
        ship_by_value(Path(hailstorm.__file__).parents[1])
        found = cloudpickle.list_registry_pickle_by_value()
        assert __name__ in found or __name__ not in sys.modules
        assert [name for name in found if name.split(".")[0] == "hailstorm"] == []
    finally:
        for name in cloudpickle.list_registry_pickle_by_value() - before:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
