"""The mistakes that a topology can have: one function each, giving the error to raise.

The numbers are stable and listed in docs/reference/errors.md; a test compares the two. Everything in
`topology` raises through here, so that the same mistake reads the same wherever it is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hailstorm.errors import Location, TopologyError, UnknownNameError, suggestion

if TYPE_CHECKING:
    from hailstorm.topology.schema import Schema


def bad_name(what: str, name: object, why: str, better: str, at: Location) -> TopologyError:
    hint = "A name is a folder in the ledger: a small letter, then small letters, digits, _ or -, at most 64 in all."
    return TopologyError(1, f"{what} cannot be called {name!r}: {why}", at=at, hint=_lines(hint, better))


def duplicate_name(name: str, first: Location, better: str, at: Location) -> TopologyError:
    hint = f"The first one is at {first.short}. Give this one another name, such as '{better}'."
    return TopologyError(2, f"a step called '{name}' exists already", at=at, hint=hint)


def unknown_column(doing: str, column: str, owner: str, schema: Schema, at: Location) -> TopologyError:
    """`doing` is what the step does with the column: `step 'counts' folds by`."""
    hint = f"'{owner}' has: {schema}. {suggestion(column, schema.names)}".rstrip()
    return TopologyError(3, f"{doing} '{column}', which '{owner}' does not have", at=at, hint=hint)


def no_consumer(name: str, kind: str, at: Location) -> TopologyError:
    hint = f"Read it: add .fold(...) or .sink(...) to '{name}', or remove the step."
    return TopologyError(4, f"nothing reads {kind} '{name}'", at=at, hint=hint)


def no_spout(topology: str, at: Location) -> TopologyError:
    hint = "Add one first: storm.spout(name, source, schema=...)."
    return TopologyError(5, f"topology '{topology}' has no spout, so nothing would ever happen", at=at, hint=hint)


def type_refused(step: str, output: str, why: str, inputs: str, at: Location) -> TopologyError:
    hint = f'It reads {inputs}. Cast it in the expression, as in "CAST(x AS DOUBLE)", or take another column.'
    return TopologyError(6, f"step '{step}' cannot compute '{output}': {why}", at=at, hint=hint)


def sql_does_not_parse(step: str, why: str, text: str, position: int, length: int, at: Location) -> TopologyError:
    hint = pointer(text, position, length)
    return TopologyError(7, f"the SQL of step '{step}' does not parse: {why}", at=at, hint=hint)


def stateful_sql(step: str, what: str, at: Location) -> TopologyError:
    hint = (
        "A bolt sees each row alone, because a tick holds whichever rows have just come.\n"
        "Use .fold(...) to aggregate, and .top(...) on its result to rank."
    )
    return TopologyError(8, f"step '{step}' uses {what}, which needs more than one row", at=at, hint=hint)


def nondeterministic_sql(step: str, what: str, at: Location) -> TopologyError:
    hint = (
        "Ticks are run again after a crash and in audits, and must give the same rows.\n"
        "Use the row's own columns, or the hidden _time, _partition and _offset."
    )
    return TopologyError(9, f"step '{step}' uses {what}, which gives another result every time", at=at, hint=hint)


def other_tables(step: str, what: str, input_name: str, at: Location) -> TopologyError:
    hint = f"The SQL of a step reads the step that it belongs to, and nothing else: SELECT ... FROM {input_name}"
    return TopologyError(10, f"step '{step}' {what}", at=at, hint=hint)


def bad_schema(why: str, text: str, position: int, length: int, advice: str, at: Location) -> TopologyError:
    hint = _lines(pointer(text, position, length), advice)
    return TopologyError(11, f"the schema is wrong: {why}", at=at, hint=hint)


def reserved_name(what: str, name: str, at: Location) -> TopologyError:
    better = name.lstrip("_") or "value"
    hint = f"Names that start with _ are Hailstorm's own (_time, _offset, _kind ...). Did you mean '{better}'?"
    return TopologyError(12, f"{what} cannot be called '{name}'", at=at, hint=hint)


def bad_duration(what: str, text: object, at: Location) -> TopologyError:
    hint = 'Write a number and a unit: "500 ms", "10 seconds", "5 minutes", "2h", "1 day".'
    return TopologyError(13, f"{what} is not a duration: {text!r}", at=at, hint=hint)


def unknown_setting(name: str, known: Iterable[str], at: Location | None) -> TopologyError:
    known = tuple(known)
    hint = f"The settings are: {', '.join(known)}. {suggestion(name, known)}".rstrip()
    return TopologyError(14, f"there is no setting '{name}'", at=at, hint=hint)


def bad_setting(name: str, value: object, takes: str, at: Location | None) -> TopologyError:
    return TopologyError(15, f"setting '{name}' cannot be {value!r}", at=at, hint=f"It takes {takes}.")


def no_monoids(step: str, at: Location) -> TopologyError:
    hint = f'Say what to compute: .fold("{step}", by=..., n=hs.count()).'
    return TopologyError(16, f"fold '{step}' computes nothing", at=at, hint=hint)


def not_a_monoid(step: str, output: str, value: object, better: str, at: Location) -> TopologyError:
    hint = better or 'Use a monoid: hs.count(), hs.sum("x"), hs.max("x") ..., or a subclass of hs.Monoid.'
    return TopologyError(17, f"step '{step}' has {output}={shown(value)}, which is not a monoid", at=at, hint=hint)


def column_twice(step: str, column: str, why: str, at: Location) -> TopologyError:
    hint = f"Give one of them another name, such as '{column}_2'."
    return TopologyError(18, f"step '{step}' would have two columns called '{column}': {why}", at=at, hint=hint)


def different_schemas(step: str, first: str, one: Schema, second: str, two: Schema, at: Location) -> TopologyError:
    hint = f"'{first}' has: {one}\n'{second}' has: {two}\nMake them equal with .select(...) first."
    return TopologyError(19, f"step '{step}' unites '{first}' and '{second}', whose columns differ", at=at, hint=hint)


def bad_function(step: str, why: str, at: Location, advice: str = "") -> TopologyError:
    hint = advice or (
        "A bolt is declared with the columns that it returns:\n"
        '    @stream.bolt(returns="word STRING, n INT")\n'
        "    def words(row): ..."
    )
    return TopologyError(20, f"bolt '{step}' {why}", at=at, hint=hint)


def no_schema(step: str, why: str, at: Location) -> TopologyError:
    hint = 'Say what the records hold: schema="user STRING, at TIMESTAMP".'
    return TopologyError(21, f"spout '{step}' {why}", at=at, hint=hint)


def bad_option(step: str, option: str, value: object, known: Iterable[str], at: Location) -> TopologyError:
    known = tuple(known)
    near = suggestion(value, known) if isinstance(value, str) else ""
    hint = f"It takes {' or '.join(repr(word) for word in known)}. {near}".rstrip()
    return TopologyError(22, f"step '{step}' has {option}={shown(value)}", at=at, hint=hint)


def wrong_argument(step: str, why: str, advice: str, at: Location) -> TopologyError:
    return TopologyError(23, f"step '{step}' {why}", at=at, hint=advice)


def union_of_tables(step: str, table: str, at: Location) -> TopologyError:
    hint = (
        "Two tables can hold the same key, and then neither row is the right one.\n"
        "Unite the streams before the fold, or turn the changes into a plain stream with .bolt or .sql first."
    )
    return TopologyError(24, f"step '{step}' unites '{table}', which is a table", at=at, hint=hint)


def bad_window(why: str, advice: str, at: Location) -> TopologyError:
    return TopologyError(71, why, at=at, hint=advice)


def too_many_windows(stream: str, count: int, most: int, at: Location) -> TopologyError:
    advice = (
        f"Let them begin less often; at most {most:,} is allowed. More are, of a stream, where windows are shown when\n"
        'they end and share what they have in common: emit="final", with monoids of Hailstorm\'s own.'
    )
    return bad_window(f"every row of '{stream}' would be in {count:,} windows", advice, at)


def no_event_time(step: str, spout: str, at: Location) -> TopologyError:
    hint = f"Name the column that says when a row happened: storm.spout('{spout}', ..., event_time='at')."
    return TopologyError(72, f"step '{step}' goes by event time, and spout '{spout}' has none", at=at, hint=hint)


def bad_key(step: str, column: str, why: str, at: Location) -> TopologyError:
    hint = "A key is one column, or a list of different columns, whose values can be compared."
    return TopologyError(25, f"step '{step}' cannot use '{column}' as a key: {why}", at=at, hint=hint)


def other_topology(step: str, other: str, at: Location) -> TopologyError:
    hint = "A step reads steps of its own topology. Two topologies meet in a log: sink into one, spout from it."
    return TopologyError(26, f"step '{step}' reads '{other}', which belongs to another topology", at=at, hint=hint)


def undeclared_input(step: str, name: str, at: Location) -> TopologyError:
    hint = f"A step reads steps that exist already, so that no circle can arise. Declare '{name}' first."
    return TopologyError(27, f"step '{step}' reads '{name}', which is not declared before it", at=at, hint=hint)


def unnamed_column(step: str, text: str, at: Location) -> TopologyError:
    hint = f"Give it one: {text} AS name"
    return TopologyError(28, f"step '{step}' selects {text}, which has no name", at=at, hint=hint)


def unknown_step(name: str, known: Iterable[str], topology: str, at: Location) -> TopologyError:
    known = tuple(known)
    hint = f"It has: {', '.join(known) or 'no steps'}. {suggestion(name, known)}".rstrip()
    return TopologyError(29, f"topology '{topology}' has no step '{name}'", at=at, hint=hint)


def unquoted_name(step: str, name: str, better: str, at: Location) -> TopologyError:
    hint = f"In SQL, a name that is not a plain word stands in backticks: {better}"
    return TopologyError(30, f"step '{step}' has {name!r} for an expression", at=at, hint=hint)


def no_such_name(owner: str, name: str, hint: str, at: Location) -> UnknownNameError:
    return UnknownNameError(31, f"{owner} has no '{name}'", at=at, hint=hint)


def takes_other_arguments(step: str, signature: str, what: str, at: Location) -> TopologyError:
    hint = f"The function of a bolt is called with {what}, and nothing else. Other values come from around it."
    return TopologyError(32, f"bolt '{step}' has a function with the arguments {signature}", at=at, hint=hint)


def gives_no_rows(step: str, what: str, at: Location) -> TopologyError:
    hint = 'A row is a dict: return {"word": word}. Several rows are yielded, one by one; no row is None.'
    return TopologyError(33, f"bolt '{step}' gives {what}, which is not a row", at=at, hint=hint)


def gives_other_columns(step: str, why: str, returns: Schema, near: str, at: Location) -> TopologyError:
    hint = f"It is declared to return: {returns}. {near}".rstrip()
    return TopologyError(34, f"bolt '{step}' {why}", at=at, hint=hint)


def still_there(step: str, old: str, first: Location, at: Location) -> TopologyError:
    if step == old:
        hint = "Say the name that it had before, or leave renamed_from out: a step keeps its state by its name."
        return TopologyError(35, f"step '{step}' is renamed from itself", at=at, hint=hint)
    hint = f"'{old}' is at {first.short}, and goes on with its state there. Leave renamed_from out, or remove '{old}'."
    return TopologyError(35, f"step '{step}' is renamed from '{old}', which is still a step", at=at, hint=hint)


def renamed_twice(step: str, old: str, other: str, at: Location) -> TopologyError:
    hint = "One state goes on in one step. Leave renamed_from out of one of the two: it starts from now."
    return TopologyError(36, f"step '{step}' is renamed from '{old}', and so is '{other}'", at=at, hint=hint)


def bad_process(step: str, why: str, at: Location, advice: str = "") -> TopologyError:
    hint = advice or (
        "A process is a class that says what it keeps and gives, and what it does with a row:\n"
        "    class Fraud(hs.Process):\n"
        "        state = Seen  # a dataclass\n"
        '        returns = "card STRING, reason STRING"\n'
        "        def on_event(self, key, event, state, timers): ..."
    )
    return TopologyError(50, f"process '{step}' {why}", at=at, hint=hint)


def bad_state(step: str, why: str, at: Location) -> TopologyError:
    hint = (
        "State is a dataclass whose fields have defaults, and are bool, int, float, str, bytes, datetime, date,\n"
        "Decimal, a list or dict of these, or one of all this `| None`: n: int = 0, last: datetime | None = None."
    )
    return TopologyError(51, f"process '{step}' {why}", at=at, hint=hint)


def pointer(text: str, position: int, length: int) -> str:
    """The line of `text` that holds `position`, and carets below the word."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    return f"{line}\n{' ' * (position - start)}{'^' * max(1, min(length, len(line) - (position - start)))}"


def shown(value: object) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
