import hailstorm as hs

storm = hs.Topology("clicks")
clicks = storm.spout("clicks", hs.Log("data/clicks"), schema="user STRING, at TIMESTAMP", event_time="at")
clicks.session("0 minutes").fold("visits", by="user", n=hs.count())
