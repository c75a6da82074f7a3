import hailstorm as hs

storm = hs.Topology("clicks")
clicks = storm.spout("clicks", hs.Log("data/clicks"), schema="user STRING, at TIMESTAMP", event_time="at")
clicks.window("1 hour", emit="append").fold("hourly", by="user", n=hs.count())
