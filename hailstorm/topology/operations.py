"""What can be done with a topology and its ledger: each method is the command of that name.

Running needs Spark, and a topology does not: what does the work comes in only when it is asked for.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hailstorm.engine.progress import Progress, Retried, Summary
    from hailstorm.history.audit import AuditedSteps
    from hailstorm.history.looking_back import Looked
    from hailstorm.history.one_record import Record
    from hailstorm.history.planning import Planned
    from hailstorm.history.replay import Replayed
    from hailstorm.history.rewind import Rewinding
    from hailstorm.history.trace import Trace


class Operations:
    """The operations of a `Topology`."""

    def run(
        self,
        *,
        ledger: str | Path | None = None,
        until: str = "never",
        complete: bool = False,
        every: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        accept: Sequence[str] = (),
        recompute: Sequence[str] = (),
        backfill: Sequence[str] = (),
        on_data_loss: Literal["fail", "continue"] = "fail",
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        standby: bool = False,
    ) -> Summary:
        """Run until stopped (Ctrl-C), as `hailstorm run app.py` does, with its progress. Gives what was done.

        `ledger` is where the state is kept, if not where the topology says. `until` is `"never"`, `"caught-up"` (with
        the logs as they end now) or a clock as JSON. `complete` says that there will be no more than that: all that
        waits for time is done at the end. `every` is the least time from one tick to the next: `"1s"`.
        `master` and `conf` are Spark's. `accept` names steps whose change is accepted with the state that they have,
        `recompute` those whose state is made again first, and `backfill` those that get their past beside the run.
        `on_data_loss="continue"` goes on where records are gone before they were read. `on_progress` is called for
        every tick, and then nothing is printed. Setting `stop` ends the run after its tick. With `standby` it waits
        while another driver has the ledger, and takes over from it. Raises HailstormError.

        When a sink has not got everything at the end, a script ends with exit code 3, as the command does; at a
        prompt, and with `on_progress`, `undelivered` of the answer says so.
        """
        watching = {} if on_progress is None else {"on_progress": on_progress}
        summary: Summary = importlib.import_module("hailstorm.cli.run").run_in_script(
            self,
            ledger=ledger,
            until=until,
            complete=complete,
            every=every,
            master=master,
            conf=conf,
            accept=tuple(accept),
            recompute=tuple(recompute),
            backfill=tuple(backfill),
            on_data_loss=on_data_loss,
            stop=stop,
            standby=standby,
            **watching,
        )
        return summary

    def rewind(
        self,
        to: int | str | datetime,
        *,
        ledger: str | Path | None = None,
        append: Literal["refuse", "keep"] = "refuse",
        accept: Sequence[str] = (),
        on_data_loss: Literal["fail", "continue"] = "fail",
        steps: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Rewinding:
        """Go back to an earlier moment, as `hailstorm rewind app.py --to WHEN --yes` does. Gives what was done, or with
        `dry_run` what would be done.

        `to` is a commit's number, the name of a snapshot, a clock as JSON, a time, or `"latest-5"`. `append="keep"`
        leaves sinks of streams with the rows that they have got since; they get those again. `accept` names steps whose
        code has changed since then. With `steps`, only these and all below them go back, and get again what was read
        since; `append` and `on_data_loss` say nothing then. The topology must not be running. Raises HailstormError.
        """
        if steps:
            some = importlib.import_module("hailstorm.history.rewind_steps")
            of_steps: Rewinding = (
                some.look_back_at_steps(self, to, tuple(steps), ledger)
                if dry_run
                else some.rewind_steps(self, to, tuple(steps), ledger=ledger, accept=tuple(accept))
            )
            return of_steps
        history = importlib.import_module("hailstorm.history.rewind")
        if dry_run:
            found: Rewinding = history.look_back_at(self, to, ledger)
            return found
        done: Rewinding = history.rewind_topology(
            self, to, ledger=ledger, append=append, accept=tuple(accept), on_data_loss=on_data_loss
        )
        return done

    def backfill(
        self,
        step: str,
        *,
        since: int | str | datetime | None = None,
        from_files: str | Path | Mapping[str, str | Path] | None = None,
        on_data_loss: Literal["fail", "continue"] = "fail",
        ledger: str | Path | None = None,
    ) -> Summary:
        """Give a step that was added later, and what is below it, the past that the logs hold, as `hailstorm backfill
        app.py STEP` does: not from their beginning, but from `since` on, if that is said.

        `from_files` is where records are that the log no longer has: files of Parquet or JSON Lines with `_partition`,
        `_offset` and the spout's columns, which end where the log begins. By spout, where the step has several.
        `on_data_loss="continue"` goes on without offsets that neither have. The topology must not be running. Raises
        HailstormError.
        """
        files = {"": from_files} if isinstance(from_files, str | Path) else from_files or {}
        history = importlib.import_module("hailstorm.history.backfill")
        summary: Summary = history.backfill_topology(
            self,
            step,
            since=since,
            from_files={spout: str(path) for spout, path in files.items()},
            on_data_loss=on_data_loss,
            ledger=ledger,
        )[1]
        return summary

    def plan(self, *, ledger: str | Path | None = None) -> Planned:
        """What has changed since the last run, step by step, and what each choice would cost, as `hailstorm plan`
        shows it. Changes nothing. Raises HailstormError when the topology has never run."""
        planning = importlib.import_module("hailstorm.history.planning")
        found: Planned = planning.plan_topology(self, ledger)
        return found

    def retry(self, *, accept: Sequence[str] = (), ledger: str | Path | None = None) -> Retried:
        """Run the dead letters through the corrected topology and merge what they give, as `hailstorm errors --retry`
        does; rows that sinks rejected are offered to them again. What fails again stays a dead letter.

        `accept` names steps whose change is accepted with the state that they have. The topology must not be running.
        Raises HailstormError.
        """
        engine = importlib.import_module("hailstorm.engine.run")
        done: Retried = engine.retry_errors(self, ledger=ledger, accept=tuple(accept))
        return done

    def resend(self, sink: str, *, ledger: str | Path | None = None) -> Summary:
        """Give a table's sink the whole table again, in place of whatever its target holds, as `hailstorm resend` does.
        `undelivered` of the answer says whether it has got all of it. The topology must not be running."""
        engine = importlib.import_module("hailstorm.engine.run")
        summary: Summary = engine.resend_table(self, sink, ledger=ledger)
        return summary

    def audit(
        self,
        *steps: str,
        at: int | str | datetime | None = None,
        since: int | str | datetime | None = None,
        keys: str | None = None,
        ledger: str | Path | None = None,
    ) -> AuditedSteps:
        """Compute the state of these steps, or of all, once more from the logs, and compare it with the ledger, as
        `hailstorm audit app.py` does. Works beside a run.

        `at` is the moment that is audited. With `since` the state of then is believed, and what came later is computed.
        `keys` compares only keys in a range of the first key column: `"a..f"`, `"100.."`, `"..99"`.
        """
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: AuditedSteps = looking_back.audit(self, steps=steps, at=at, since=since, keys=keys, ledger=ledger)
        return found

    def replay(
        self,
        since: int | str | datetime,
        until: int | str | datetime | None = None,
        *,
        ledger: str | Path | None = None,
    ) -> Replayed:
        """Run the commits after `since`, up to `until`, again, and compare with what was committed."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Replayed = looking_back.replay(self, since=since, until=until, ledger=ledger)
        return found

    def trace(self, record: str, *, ledger: str | Path | None = None) -> Trace:
        """What became of one record, `"tweets/0@1200"`: its tuples, the keys it changed, and what left for sinks."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Trace = looking_back.trace(self, record, ledger=ledger)
        return found

    def state(self, step: str, at: int | str | datetime | None = None, *, ledger: str | Path | None = None) -> Looked:
        """A step's state now, or at any moment, as `hailstorm state app.py STEP --at WHEN` gives it: `.arrow()`,
        `.pandas()`, `.polars()`. Works beside a run.

        `at` is a commit's number, the name of a snapshot, a clock as JSON, a record (`"tweets/0@1200"`: just after it
        was read), a time, or `"latest-5"`. Between two commits that are kept, the rest is run again with the code of
        now; a warning says which steps have changed since. Raises HailstormError.
        """
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Looked = looking_back.state(self, step, at=at, ledger=ledger)
        return found

    def diff(
        self,
        step: str,
        a: int | str | datetime,
        b: int | str | datetime | None = None,
        *,
        ledger: str | Path | None = None,
    ) -> Looked:
        """What changed in a step from one moment to another, as `hailstorm diff app.py STEP A B` gives it."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Looked = looking_back.diff(self, step, a, b, ledger=ledger)
        return found

    def trace_key(
        self,
        step: str,
        /,
        *,
        since: int | str | datetime = 0,
        until: int | str | datetime | None = None,
        ledger: str | Path | None = None,
        **key: Any,
    ) -> tuple[Record, ...]:
        """The records that made a key of a step, as `hailstorm trace --key` finds them: `storm.trace_key("counts",
        word="rain")`. Of those that were read after the moment `since`, up to `until`."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: tuple[Record, ...] = looking_back.makers(self, step, key, since=since, until=until, ledger=ledger)
        return found

    def trace_output(
        self,
        sink: str,
        commit: int,
        row: int,
        *,
        since: int | str | datetime | None = None,
        ledger: str | Path | None = None,
    ) -> tuple[Record, ...]:
        """The records that made a row of a sink's outbox, in one commit, as `hailstorm trace --output` finds them: in
        that commit or, where rows may have waited, from the beginning on; with `since`, after that moment."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: tuple[Record, ...] = looking_back.makers_of_output(self, sink, commit, row, since=since, ledger=ledger)
        return found
