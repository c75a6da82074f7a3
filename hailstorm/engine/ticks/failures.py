"""Why a job failed, as a class: `advance` asks, and those who try again decide by the class alone.

TransientRunError, TransientLogError   may work when tried again
BadRecordsError                        some records make it fail: without them it would not
any other error of ours                a person must see it
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)

from hailstorm.engine.stages.failure import disk_full, expression_failed, told_by
from hailstorm.errors import HailstormError, TransientRunError

_SQL_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
SPARK_LOG = "spark.log in the ledger's folder .cache, or for object stores in ~/.cache/hailstorm"
_JAVA_DISK_FULL = "java.io.IOException: No space left on device"  # Java has no class, and no number, of its own for it


def failure_of_job(error: PySparkException | Py4JJavaError) -> HailstormError:
    """What a Spark job failed of."""
    told = told_by(str(error))
    if told is not None:
        return told
    if isinstance(error, _SQL_ERRORS):
        return expression_failed(_said_by_sql(error))
    cause = _cause(error)
    if _JAVA_DISK_FULL in str(error):
        return disk_full(cause)
    return TransientRunError(1, f"a Spark job failed: {cause}", hint=f"Spark's log may say why: {SPARK_LOG}")


def _said_by_sql(error: PySparkException) -> str:
    """An expression of the user's that fails on a row: Spark says why, and quotes it."""
    why, _, rest = str(error).partition(" SQLSTATE")
    quoted = [line for line in rest.splitlines()[1:] if line and not line.startswith(("==", "^", " "))]
    return f"an SQL expression fails on a row: {why}" + (f" In: {quoted[0]}" if quoted else "")


def _cause(error: PySparkException | Py4JJavaError) -> str:
    """The last line of a traceback says what happened; the first lines are Spark's plumbing."""
    if isinstance(error, Py4JJavaError):  # what pyspark has no class for, such as a worker that was killed
        said = str(error.java_exception.getMessage()).partition("\n")[0]
        return said.rpartition("most recent failure: ")[2]
    lines = [line for line in str(error).strip().splitlines() if line and not line.startswith((" ", "\t"))]
    raised = [line for line in lines if not line.startswith(("Traceback", "Driver stacktrace", "at "))]
    return raised[-1] if raised else type(error).__name__
