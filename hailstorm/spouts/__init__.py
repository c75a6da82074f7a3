"""Logs: what spouts read. `source` is the protocol; each log is a module."""

from hailstorm.spouts.files import Files
from hailstorm.spouts.log import Log
from hailstorm.spouts.rate import Rate

__all__ = ["Files", "Log", "Rate"]
