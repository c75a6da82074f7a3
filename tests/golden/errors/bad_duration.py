import hailstorm as hs

storm = hs.Topology("trending")
storm.spout("tweets", hs.Log("data/tweets"), schema="at TIMESTAMP", event_time="at", lateness="10 parsecs")
