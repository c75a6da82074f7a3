import hailstorm as hs


class Counting(hs.Process):
    state = dict
    returns = "n BIGINT"

    def on_event(self, key, event, state, timers):
        yield {"n": 1}


storm = hs.Topology("clicks")
clicks = storm.spout("clicks", hs.Log("data/clicks"), schema="user STRING")
clicks.process("counting", by="user", using=Counting)
