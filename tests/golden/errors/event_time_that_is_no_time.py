import hailstorm as hs

storm = hs.Topology("trending")
storm.spout("tweets", hs.Log("data/tweets"), schema="at STRING", event_time="at")
