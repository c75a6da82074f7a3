import hailstorm as hs

storm = hs.Topology("fraud")
paid = storm.spout("paid", hs.Log("data/paid"), schema="card STRING, at TIMESTAMP", event_time="at")
rules = storm.table("rules", hs.Log("data/rules"), schema="id STRING, n INT, at TIMESTAMP", key="id", event_time="at")
paid.lookup("judged", rules, on=[], as_of="event time")
