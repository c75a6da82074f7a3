"""Words of other tools: what people type who know pandas, Spark, Flink or Kafka Streams, and what it is called here.

`Stream`, `Windowed`, `Topology` and the package itself ask when a name is not there. Nothing of this is visible to type
checkers: a wrong name is a mistake for them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hailstorm.errors import Location, UnknownNameError, suggestion
from hailstorm.topology import mistakes

_BOLT = 'a function over rows is .bolt(function, name="...", returns="word STRING"); SQL is .select(name, word="...")'
_FLAT = 'a bolt may yield any number of rows: .bolt(function, name="...", returns="word STRING")'
_WHERE = 'rows are kept with .where(name, "n > 3")'
_FOLD = 'rows are grouped and aggregated in one step: .fold(name, by="word", n=hs.count())'
_SINK = "what leaves the topology goes to a sink: .sink(name, hs.Console()), hs.Call(function), hs.Postgres(...) ..."
_SELECT = '.select(name, word="upper(word)") makes columns'
_TOP = "a stream has no order; the largest rows of a table are .fold(...).top(name, 10, by='n')"
_UNION = ".union(name, other) puts streams together"
_READ = "nothing is computed while you declare; results are read with hs.open_ledger(path).state(name)"
_SPOUT = '.spout(name, hs.Log("data/x"), schema="word STRING") reads a log'
_BEGIN = 'everything begins with storm = hs.Topology("name"); storm.spout(...) reads a log'
_RUN = ".run() runs it, as `hailstorm run app.py` does"


def _words(meanings: Mapping[str, str]) -> dict[str, str]:
    return {word: meaning for words, meaning in meanings.items() for word in words.split()}


OF_STREAMS = _words(
    {
        "map map_rows mapValues apply transform pipe foreachRow": _BOLT,
        "flat_map flatMap explode": _FLAT,
        "filter query": _WHERE,
        "group_by groupby groupBy groupByKey key_by keyBy aggregate agg reduce reduce_by_key reduceByKey count sum "
        "value_counts": _FOLD,
        "foreach for_each foreachBatch forEach write writeStream write_stream to to_kafka add_sink addSink sink_to "
        "sinkTo print subscribe": _SINK,
        "with_column withColumn with_columns withColumns assign drop rename": _SELECT,
        "order_by orderBy sort sort_values limit head nlargest top": _TOP,
        "unionAll union_all concat merge": _UNION,
        "collect show to_pandas toPandas to_arrow toArrow take first": _READ,
    }
)
# Whatever else is asked of windows and sessions, the fold comes before it.
OF_A_WINDOW = 'a window is folded first, and then a table: .window("1 hour").fold(name, by="word", n=hs.count())'
OF_TOPOLOGIES = _words(
    {
        "stream source read readStream read_stream from_source add_source addSource input from_kafka": _SPOUT,
        "start execute submit start_and_await": _RUN,
        "draw plot show explain": ".graph() is the picture: .graph().text(), .mermaid(), .dot()",
        "add_bolt setBolt setSpout bolt": _SPOUT + ", and its stream has .bolt, .where, .fold ...",
    }
)
OF_THE_PACKAGE = _words(
    {
        "avg average": "the mean is hs.mean",
        "std stdev stddev_samp": "the standard deviation is hs.stddev",
        "var var_samp": "the variance is hs.variance",
        "last last_value": "the value of the latest row is hs.latest",
        "first first_value": "the value of the earliest row is hs.earliest",
        "median percentile approx_percentile quantile": "quantiles are hs.quantiles(column, 0.5, 0.99)",
        "nunique approx_count_distinct countDistinct": "it is hs.count_distinct",
        "collect_set unique": "the set of values is hs.set",
        "collect_list": "there is no list of all values, which would grow for ever; hs.set and hs.top are bounded",
        "stream Pipeline App Dataflow StreamExecutionEnvironment StreamsBuilder TopologyBuilder source spout": _BEGIN,
        "sink": "a stream has .sink(name, hs.Console()); the sinks are hs.Console, hs.Postgres ...",
        "KafkaSource KafkaSink": "Kafka is a log and a sink: hs.Kafka",
        "Ledger read_ledger load": "a ledger is read with hs.open_ledger(path)",
    }
)


def unknown_name(owner: str, name: str, words: Mapping[str, str], known: Iterable[str], dotted: str) -> Exception:
    """The error for a name that is not there. Tools ask for `_names`, and get the one that they know."""
    if name.startswith("_"):
        return AttributeError(f"{owner} has no attribute '{name}'")
    meaning = words.get(name, "")
    near = suggestion(name, [word for word in known if not word.startswith("_")])
    hint = f"Here {meaning}." if meaning else near.replace("'", dotted, 1).replace("'", "", 1) if near else ""
    error: UnknownNameError = mistakes.no_such_name(owner, name, hint, Location.of_caller())
    return error
