import hailstorm as hs

storm = hs.Topology("clicks")
clicks = storm.spout("clicks", hs.Log("data/clicks"), schema="user STRING, at TIMESTAMP", event_time="at")
users = clicks.fold("users", by="user", n=hs.count())
users.session("10 minutes").fold("visits", by="user", n=hs.sum("n"))
