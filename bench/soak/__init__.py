"""Soaks: a topology runs for a long time, and what it uses is written down: time per tick, memory, disk, files.

    python -m bench.soak full --minutes 60     as much as the machine can do
    python -m bench.soak small --minutes 60    as many ticks per second as it can do
    python -m bench.soak latency --minutes 60  1,000 records a second, Kafka to Kafka: how old they are on arrival
    python -m bench.soak draw                  docs/images/soak.svg and latency.svg, from what they have written

What is looked for is shape: after the youngest tiers of retention are full, no line may go on rising. `tests/soak` has
short forms, with little patience in everything, and `make soak` the long ones.
"""
