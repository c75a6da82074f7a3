import hailstorm as hs

storm = hs.Topology("ads")
views = storm.spout("views", hs.Log("data/views"), schema="ad STRING, at TIMESTAMP", event_time="at")
clicks = storm.spout("clicks", hs.Log("data/clicks"), schema="ad STRING, at TIMESTAMP", event_time="at")
views.join("clicked", clicks, on="ad", within=("10 minutes", "-20 minutes"))
