from dataclasses import dataclass

import hailstorm as hs

storm = hs.Topology("cards")
swipes = storm.spout("swipes", hs.Log("data/swipes"), schema="card STRING, at TIMESTAMP", event_time="at")


@dataclass
class Seen:
    n: int = 0


class Watch(hs.Process):
    state = Seen
    returns = "card STRING, n INT"

    def on_event(self, key, event, state, timers):
        yield {"card": "a", "n": 1}


swipes.process("watch", by="card", using=Watch).output("alerts")
