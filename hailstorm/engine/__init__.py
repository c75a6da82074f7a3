"""The engine: what runs a topology. `docs/engine.md` explains the words.

run.py          opens everything, hands it to the negotiator, and stops gracefully
negotiator.py   the loop: choose a clock, advance, commit
advance.py      runs a plan over one interval; the one function that everything else is made of
beside.py       delivery and housekeeping, and the commits that they need
account.py      what a run has done so far, told to those who watch (progress.py: what it tells)
retry.py        the second chance of dead letters
plan/           topology -> plan: one file per kind of stateful step
stages/         what runs in Spark's tasks
ticks/          the parts of one tick, in the driver
resident/       ticks without a Spark job
delivery/       outboxes to sinks
spark/          sessions, the JVM, shipping code
"""
