"""Topologies to read, to run (`hailstorm demo NAME`) and to copy. Each is also a test.

Every example has `feed(log, n, seed)`, which appends n made-up events, the same ones for the same seed, and
`oracle(events)`, which says in plain Python what the state must be afterwards.
"""
