"""Nexmark, the field's benchmark: people, auctions and bids, and questions about them.

`events.py` makes the events, each a pure function of its number; `queries.py` has the questions as topologies. The
queries are those of https://github.com/nexmark/nexmark; q101 to q106 are RisingWave's additions.
"""
