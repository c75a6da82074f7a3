"""What we ask of Spark, and what of it the user's own settings change."""

from __future__ import annotations

from hailstorm.engine.spark.session import SETTINGS, defaults


def test_the_ui_is_off_and_then_spark_remembers_little_of_past_jobs() -> None:
    chosen = defaults({})
    assert chosen["spark.ui.enabled"] == "false"
    assert int(chosen["spark.ui.retainedJobs"]) <= 10
    assert SETTINGS.items() <= chosen.items()


def test_who_switches_the_ui_on_sees_as_many_jobs_as_spark_shows_by_itself() -> None:
    for word in ("true", "True"):
        chosen = defaults({"spark.ui.enabled": word})
        assert not any("retained" in name for name in chosen)
    assert "spark.ui.retainedJobs" in defaults({"spark.ui.enabled": "false", "spark.eventLog.enabled": "true"})


def test_with_dynamic_allocation_an_executor_that_only_holds_an_anchor_is_idle() -> None:
    cached = "spark.dynamicAllocation.cachedExecutorIdleTimeout"  # Spark's own choice: for ever
    assert defaults({})[cached] == "60s"
    assert defaults({"spark.dynamicAllocation.executorIdleTimeout": "5s"})[cached] == "5s"
